"""Places that no run comes to, as a switch before them is off: nothing that is called says another than the default.

A switch is a parameter, or an attribute that a constructor keeps of one: ``def match(boxes, half=False)``,
``self.sync = sync``. All calls of the function must be seen: where its name is written and not called, somebody else
may call it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from weakref import WeakKeyDictionary

from amp_rules.flow.values import ClassInfo
from amp_rules.plan.decided_tests import UNKNOWN, DecidedTests
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import last_name, own_name

_FINDS_ANY = frozenset({"__import__", "eval", "exec", "globals", "locals"})
"""By these a function is found whose name is not written."""


class ConstantTests(DecidedTests):
    """Answers for the places of a program, by switches that no call turns on."""

    def _is_never_made(self, module: Module, info: FunctionFacts, depth: int) -> bool:
        return info.outer is not None and self._keep_out(module, info.node, depth + 1)

    def _value_of_other(self, node: ast.expr, scope: Scope, depth: int) -> object:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand, scope, depth)
            return -value if isinstance(value, (int, float)) else UNKNOWN
        if isinstance(node, ast.Name):
            return self._given(node.id, scope, depth)
        return self._kept(node, scope, depth) if isinstance(node, ast.Attribute) else UNKNOWN

    def _given(self, name: str, scope: Scope, depth: int) -> object:
        """What a parameter is in every call."""
        info = self._program.function_of(scope.owner(name).node)
        if info is None or name not in info.parameters or isinstance(info.node, ast.Lambda):
            return UNKNOWN
        if name in (info.receiver, *(item.arg for item in (info.node.args.vararg, info.node.args.kwarg) if item)):
            return UNKNOWN
        if _is_written(info.node, name):
            return UNKNOWN
        found = set()
        for call, where in self._calls(info):
            given = info.argument_or_default(call, name)
            of_default = given is not None and given is info.defaults.get(name)
            if given is None or (of_default and not _is_constant(given)):
                return UNKNOWN
            found.add(self._value(given, where, depth + 1))
        return found.pop() if len(found) == 1 else UNKNOWN

    def _kept(self, node: ast.Attribute, scope: Scope, depth: int) -> object:
        """What an attribute of ``self`` is, where one constructor alone sets it, in any case."""
        if not isinstance(node.value, ast.Name):
            return UNKNOWN
        method = self._program.function_of(scope.owner(node.value.id).node)
        owner = self._program.flow.class_of(method) if method is not None else None
        if method is None or owner is None or node.value.id != method.receiver or method.is_class_method:
            return UNKNOWN
        family = _family(self._program, owner)
        words = _words(self._program)
        if words.sets_any(self._program, family) or any(_has_in_body(item, node.attr) for item in family):
            return UNKNOWN
        found: list[tuple[ast.Assign, FunctionFacts]] = []
        for stored, module in words.stores[node.attr]:
            setter = self._program.function_of(blocks.body_of(module, stored))
            cls = self._program.flow.class_of(setter) if setter is not None else None
            is_own = isinstance(stored.value, ast.Name) and setter is not None and stored.value.id == setter.receiver
            if is_own and cls is not None and cls not in family:
                continue
            statement = module.parents[stored]
            if not is_own or setter is None or setter.name != "__init__" or not isinstance(statement, ast.Assign):
                return UNKNOWN
            if statement not in getattr(setter.node, "body", ()):
                return UNKNOWN
            found.append((statement, setter))
        if len(found) != 1:
            return UNKNOWN
        [(statement, setter)] = found
        return self._value(statement.value, self._program.flow.scopes[setter.node], depth + 1)

    # ---- the calls of a function -----------------------------------------------------------------------------------

    def _calls(self, info: FunctionFacts) -> list[tuple[ast.Call, Scope]]:
        """All calls of a function; none where there may be others."""
        node = info.node
        if isinstance(node, ast.Lambda) or node.decorator_list or isinstance(node, ast.AsyncFunctionDef):
            return []
        owner = self._program.flow.class_of(info)
        names = {info.name}
        if info.name == "__init__" and owner is not None:
            made = [item.facts.node for item in _family(self._program, owner)]
            if any(item.decorator_list or item.keywords for item in made):
                return []
            names = {item.facts.name for item in _derived(self._program, owner)}
        elif info.name.startswith("__") or info.name == "forward":
            return []
        elif owner is not None and owner.external_bases() - {"builtins.object", "torch.nn.Module"}:
            return []  # a library that knows the base can call it
        callers = {item.call: item.scope for item in self._program.flow.callers(info)}
        words = _words(self._program)
        if words.finds_any or any(name in words.texts for name in names):
            return []
        seen: dict[ast.Call, Scope] = {}
        for written, module in (item for name in names for item in words.loads[name]):
            parent = module.parents[written]
            if isinstance(parent, ast.Call) and parent.func is written and parent in callers:
                seen[parent] = callers[parent]
            elif not self._is_another(written, parent, owner, info):
                return []
        for call, scope in callers.items():
            if call not in seen:
                if info.name != "__init__" or not _is_of_super(call):
                    return []
                seen[call] = scope
        return list(seen.items())

    def _is_another(self, written: ast.expr, parent: ast.AST, owner: ClassInfo | None, info: FunctionFacts) -> bool:
        """Whether a name stands for something else, or only names the class: a base, ``super(Net, self)``."""
        if isinstance(parent, ast.ClassDef):
            return owner is not None
        if isinstance(parent, ast.Call) and parent.func is not written:
            return owner is not None and own_name(parent.func) in ("super", "isinstance")
        located = self._program.locate(written)
        if located is None:
            return isinstance(parent, ast.Call)  # in a function that nothing runs
        callees = self._program.flow.callees(parent) if isinstance(parent, ast.Call) else set()
        return bool((callees and info not in callees) or self._program.names(written, located[1]))


class _Words:
    """Where the files of a program write names, found once.

    It keeps no reference to the program, which keeps this alive.
    """

    def __init__(self, program: Program) -> None:
        self.loads: defaultdict[str, list[tuple[ast.expr, Module]]] = defaultdict(list)
        self.stores: defaultdict[str, list[tuple[ast.Attribute, Module]]] = defaultdict(list)
        self.texts: set[str] = set()
        self.finds_any = False
        self._set: list[ast.expr] = []
        for module in program.flow.modules:
            exports = [item for item in module.tree.body if "__all__" in blocks.writes(item)]
            exported = {part for item in exports for part in ast.walk(item)}
            for node in module.nodes:
                if node not in exported:
                    self._note(program, node, module)

    def _note(self, program: Program, node: ast.AST, module: Module) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.texts.add(node.value)
        elif isinstance(node, ast.alias) and node.asname is not None:
            self.texts.add(node.name.rpartition(".")[2])  # called by another name
        elif isinstance(node, (ast.Name, ast.Attribute)):
            if isinstance(node.ctx, ast.Load):
                self.loads[last_name(node)].append((node, module))
                self.finds_any |= isinstance(node, ast.Name) and node.id in _FINDS_ANY
                if isinstance(node, ast.Attribute) and node.attr == "__dict__" and not _only_reads(module, node):
                    self._set.append(node.value)
            elif isinstance(node, ast.Attribute):
                self.stores[node.attr].append((node, module))
        elif isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Name):
            if node.func.id == "setattr" or (node.func.id == "vars" and not _only_reads(module, node)):
                self._set.append(node.args[0])
            elif node.func.id == "getattr" and len(node.args) > 1 and not isinstance(node.args[1], ast.Constant):
                self.finds_any |= _may_be(program, node.args[0], None)

    def sets_any(self, program: Program, family: set[ClassInfo]) -> bool:
        """Whether something may set an attribute by another way of one of these classes."""
        return self.finds_any or any(_may_be(program, node, family) for node in self._set)


def _may_be(program: Program, node: ast.expr, family: set[ClassInfo] | None) -> bool:
    """Whether an object may be one of these classes, or a file where none are given."""
    located = program.locate(node)
    if located is None:
        return False  # in a function that nothing runs
    values = program.flow.values(node, located[1])
    method = program.function_of(located[0])
    owner = program.flow.class_of(method) if method is not None else None
    if owner is not None and isinstance(node, ast.Name) and method is not None and node.id == method.receiver:
        return family is not None and any(owner in item.mro() or item in owner.mro() for item in family)
    if family is None:
        return not values or any(value.kind == "module" for value in values)
    return not values or any(value.kind == "instance" and value.ref in family for value in values)


_WORDS: WeakKeyDictionary[Program, _Words] = WeakKeyDictionary()


def _words(program: Program) -> _Words:
    known = _WORDS.get(program)
    if known is None:
        known = _WORDS[program] = _Words(program)
    return known


def _derived(program: Program, owner: ClassInfo) -> Iterator[ClassInfo]:
    """The classes whose objects the constructor of a class makes, itself first."""
    yield from (item for item in program.flow.classes.values() if owner in item.mro())


def _family(program: Program, owner: ClassInfo) -> set[ClassInfo]:
    """A class, its bases and what derives from it or from them."""
    above = owner.mro()
    return {item for item in program.flow.classes.values() if any(base in item.mro() for base in above)}


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


def _only_reads(module: Module, attributes: ast.expr) -> bool:
    """Whether the attributes of an object are only looked at: ``**self.__dict__``, ``vars(self).items()``."""
    parent = module.parents[attributes]
    if isinstance(parent, ast.Attribute):
        return parent.attr in ("copy", "get", "items", "keys", "values")
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, ast.Load)
    return isinstance(parent, ast.keyword) and parent.arg is None


def _has_in_body(owner: ClassInfo, name: str) -> bool:
    return any(name in blocks.writes(item) for item in owner.facts.node.body if not isinstance(item, FunctionNode))


def _is_written(function: FunctionNode, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
        for node in ast.walk(function)
    )


def _is_of_super(call: ast.Call) -> bool:
    """``super().__init__(...)``."""
    func = call.func
    if not (isinstance(func, ast.Attribute) and func.attr == "__init__" and isinstance(func.value, ast.Call)):
        return False
    return own_name(func.value.func) == "super"
