"""Where the calls, assignments, loops and tests of a file stand: for rules about whole files.

The abstract machine runs one function at a time. What is made in one function, kept in ``self`` and used in another
is found here, by syntax.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property

from amp_rules.source.modules import Module
from amp_rules.source.syntax import children, in_pairs, last_name

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
Body = Function | ast.Lambda | None
"""What runs a node: a function, or None for the statements of the file."""
Branch = tuple[ast.expr, bool]
Assignment = tuple[ast.expr, ast.expr, ast.AST]
"""Target, value and statement."""

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)


class FileIndex:
    """The places of a file.

    Args:
        module: the file.
        constructors: the ``__init__`` of each of its classes that has one, by the name of the class.

    Attributes:
        calls: every call, in the order of the text.
        named: calls by the last part of the callee's name: ``b`` for ``a.b(x)``, and for ``c(x)`` where ``c`` is
            imported as another name for it.
        assignments: target, value and statement of each plain assignment; ``with x as y`` and ``y := x`` count.
        functions: every function and method by name, nested ones too.
        loops: every ``for`` and ``while``.
        words: every identifier of the file, and strings that look like one.
    """

    def __init__(self, module: Module, constructors: Mapping[str, Function]) -> None:
        self.module = module
        self.constructors = constructors
        self.calls: list[ast.Call] = []
        self.named: dict[str, list[ast.Call]] = {}
        self.assignments: list[Assignment] = []
        self.functions: dict[str, list[Function]] = {}
        self.loops: list[Loop] = []
        self.words: set[str] = set()
        self._renamed: dict[str, str] = {}
        self._names: dict[str, list[ast.Name | ast.Attribute]] = {}
        self._scopes: dict[ast.AST, Body] = {}
        self._branches: dict[ast.AST, list[Branch]] = {}
        self._collect(module.tree)

    def _collect(self, tree: ast.AST) -> None:
        # In the order of the text: children are pushed backwards.
        stack = [tree]
        while stack:
            node = stack.pop()
            self._enter(node)
            stack.extend(reversed(children(node)))

    def _enter(self, node: ast.AST) -> None:
        kind = node.__class__
        if kind is ast.Call:
            self.calls.append(node)  # type: ignore[arg-type]
            name = last_name(node.func)  # type: ignore[attr-defined]
            if node.func.__class__ is ast.Name:  # type: ignore[attr-defined]
                name = self._renamed.get(name, name)
            if name:
                self.named.setdefault(name, []).append(node)  # type: ignore[arg-type]
        elif kind is ast.Name:
            self.words.add(node.id)  # type: ignore[attr-defined]
            self._names.setdefault(node.id, []).append(node)  # type: ignore[attr-defined, arg-type]
        elif kind is ast.Attribute:
            self.words.add(node.attr)  # type: ignore[attr-defined]
            self._names.setdefault(node.attr, []).append(node)  # type: ignore[attr-defined, arg-type]
        elif kind is ast.Constant:
            if isinstance(node.value, str) and node.value.isidentifier():  # type: ignore[attr-defined]
                self.words.add(node.value)  # type: ignore[attr-defined]
        elif isinstance(node, _LOOPS):
            self.loops.append(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.functions.setdefault(node.name, []).append(node)
        else:
            self._enter_binding(node)

    def _enter_binding(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            self.assignments += [(target, node.value, node) for target in node.targets]
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            self.assignments.append((node.target, node.value, node))
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    self.assignments.append((item.optional_vars, item.context_expr, node))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                self.words.update(alias.name.split("."))
                if alias.asname:
                    self.words.add(alias.asname)
                    self._renamed[alias.asname] = alias.name.rpartition(".")[2]
            if isinstance(node, ast.ImportFrom) and node.module:
                self.words.update(node.module.split("."))

    # ---- around a node -------------------------------------------------------------------------------------------

    @property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """What each node stands in, as the file knows it."""
        return self.module.parents

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what stands around ``node``, the nearest first."""
        return self.module.ancestors(node)

    def scope(self, node: ast.AST) -> Body:
        """The function that ``node`` stands in; None for the statements of the file."""
        if node not in self._scopes:
            self._scopes[node] = next((item for item in self.ancestors(node) if isinstance(item, _SCOPES)), None)
        return self._scopes[node]

    def owner(self, function: ast.AST) -> ast.ClassDef | None:
        """The class whose method a function is."""
        parent = self.parents.get(function)
        while isinstance(parent, (ast.If, ast.Try)):
            parent = self.parents.get(parent)
        return parent if isinstance(parent, ast.ClassDef) else None

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that ``node`` stands in."""
        found = node
        while not isinstance(found, ast.stmt):
            found = self.parents[found]
        return found

    def loops_around(self, node: ast.AST) -> list[Loop]:
        """The loops that run ``node`` again and again, within its function, the innermost first."""
        found: list[Loop] = []
        child = node
        for item in self.ancestors(node):
            if isinstance(item, (*_SCOPES, ast.ClassDef)):
                break
            if isinstance(item, _LOOPS) and (child in item.body or child is getattr(item, "test", None)):
                found.append(item)
            child = item
        return found

    def branches(self, node: ast.AST) -> Iterator[Branch]:
        """Yield the tests that decide within the function whether ``node`` is reached, and how they come out."""
        known = self._branches.get(node)
        if known is None:
            known = self._branches[node] = [*self._found_branches(node)]
        return iter(known)

    def _found_branches(self, node: ast.AST) -> Iterator[Branch]:
        child = node
        for item in self.ancestors(node):
            if isinstance(child, ast.stmt):
                yield from self._left_before(item, child)
            if isinstance(item, ast.If):
                if child is not item.test:
                    yield item.test, child in item.body
            elif isinstance(item, ast.IfExp):
                if child is not item.test:
                    yield item.test, child is item.body
            elif isinstance(item, ast.While):
                if child is not item.test:
                    yield item.test, True
            elif isinstance(item, ast.BoolOp):
                for value in item.values:
                    if value is child:
                        break
                    yield value, isinstance(item.op, ast.And)
            elif isinstance(item, (*_SCOPES, ast.ClassDef)):
                return
            child = item

    def _left_before(self, parent: ast.AST, child: ast.stmt) -> Iterator[Branch]:
        """``if test: return`` further up in the suite."""
        for field in ("body", "orelse", "finalbody"):
            suite = getattr(parent, field, None)
            if isinstance(suite, list) and child in suite:
                for statement in suite[: suite.index(child)]:
                    if isinstance(statement, ast.If):
                        if leaves(statement.body):
                            yield statement.test, False
                        if statement.orelse and leaves(statement.orelse):
                            yield statement.test, True
                return

    def precedes(self, first: ast.AST, second: ast.AST) -> bool:
        """Whether ``first`` can run before ``second`` in one pass through their function.

        They stand in the same function, in this order, and not in two branches of one ``if``.
        """
        if self.scope(first) is not self.scope(second) or not before(first, second):
            return False
        around = {id(item): child for item, child in self._chain(second)}
        for item, child in self._chain(first):
            if isinstance(item, (ast.If, ast.IfExp)) and id(item) in around:
                other = around[id(item)]
                if child is item.test or other is item.test:
                    return True
                body = item.body if isinstance(item.body, list) else [item.body]
                return (child in body) == (other in body)
        return True

    def _chain(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        child = node
        for item in self.ancestors(node):
            yield item, child
            child = item

    # ---- names ---------------------------------------------------------------------------------------------------

    def uses(self, name: str) -> list[ast.Name | ast.Attribute]:
        """The names and attributes spelt ``name``, in the order of the text."""
        return self._names.get(name, [])

    @cached_property
    def assignments_of(self) -> dict[str, list[Assignment]]:
        """The assignments that bind a variable or change an item of it, also within a tuple, by its name."""
        found: dict[str, list[Assignment]] = {}
        for item in self.assignments:
            target = item[0]
            parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
            bases = [part.value if isinstance(part, ast.Subscript) else part for part in parts]
            for name in dict.fromkeys(base.id for base in bases if isinstance(base, ast.Name)):
                found.setdefault(name, []).append(item)
        return found

    @cached_property
    def _assigned(self) -> dict[tuple[type, str], list[Assignment]]:
        """The assignments to a name, or to an attribute of some object; ``a, b = x, y`` are two."""
        found: dict[tuple[type, str], list[Assignment]] = {}
        for target, value, statement in self.assignments:
            for one, given in in_pairs(target, value):
                if isinstance(one, (ast.Name, ast.Attribute)):
                    found.setdefault((type(one), last_name(one)), []).append((one, given, statement))
        return found

    def values_of(self, target: ast.expr) -> list[ast.expr]:
        """What is assigned anywhere to a name (of the same function or the file) or to an attribute of that name."""
        if not isinstance(target, (ast.Name, ast.Attribute)):
            return []
        found = self._assigned.get((type(target), last_name(target)), [])
        if isinstance(target, ast.Attribute):
            return [value for _, value, _ in found]
        return [value for other, value, _ in found if self._same_scope(other, target)]

    def _same_scope(self, one: ast.AST, other: ast.AST) -> bool:
        scope = self.scope(one)
        return scope is None or scope is self.scope(other)

    def callers(self, function: Function) -> list[ast.Call]:
        """The calls in this file of a function or method, as far as names tell."""
        owner = self.owner(function)
        found = []
        for call in self.named.get(function.name, []):
            is_method = isinstance(call.func, ast.Attribute)
            if is_method == (owner is not None):
                found.append(call)
        if owner is not None and function.name == "__init__":
            found += self.named.get(owner.name, [])
        return found

    def callees(self, call: ast.Call) -> list[Function]:
        """The functions of this file that a call may run, as far as names tell."""
        name = last_name(call.func)
        if not name:
            return []
        is_method = isinstance(call.func, ast.Attribute)
        found = [item for item in self.functions.get(name, []) if is_method == (self.owner(item) is not None)]
        if not found and not is_method and name in self.constructors:
            return [self.constructors[name]]
        return found


def before(first: ast.AST, second: ast.AST) -> bool:
    """Whether ``first`` stands before ``second`` in the text."""
    return (first.lineno, first.col_offset) < (second.lineno, second.col_offset)  # type: ignore[attr-defined]


def leaves(body: list[ast.stmt]) -> bool:
    """Whether a suite ends by leaving the place: ``return``, ``raise``, ``continue``, ``break``, ``sys.exit()``."""
    last = body[-1]
    if isinstance(last, _LEAVING):
        return True
    return isinstance(last, ast.Expr) and ends_process(last.value)


def leaves_function(body: list[ast.stmt]) -> bool:
    """Whether a suite ends by leaving the function, or the process."""
    return isinstance(body[-1], (ast.Return, ast.Raise)) or (leaves(body) and isinstance(body[-1], ast.Expr))


def leaves_before(module: Module, one: ast.AST, other: ast.AST) -> bool:
    """Whether a branch that the first node stands in, and the other does not, ends by leaving the place."""
    around = set(module.ancestors(other))
    child = one
    for parent in module.ancestors(one):
        if isinstance(parent, ast.If) and parent not in around and child is not parent.test:
            if leaves(parent.body if child in parent.body else parent.orelse):
                return True
        child = parent
    return False


def ends_process(node: ast.expr) -> bool:
    """Whether this is a call that does not come back: ``sys.exit()``."""
    return isinstance(node, ast.Call) and last_name(node.func) in ("exit", "_exit", "quit", "abort")


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The argument of that name."""
    return next((item.value for item in call.keywords if item.arg == name), None)


def argument_at(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """The argument of that name, which may be given by its place, from 0."""
    return call.args[place] if len(call.args) > place else keyword(call, name)


def literal(node: ast.AST | None) -> object:
    """The constant that ``node`` is; Ellipsis for anything else."""
    return node.value if isinstance(node, ast.Constant) else ...
