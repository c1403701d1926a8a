"""Statements, the suites they stand in, and the paths of names that they read and write."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from amp_rules.source.index import leaves
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode
from amp_rules.source.syntax import COMPREHENSIONS, children, conjuncts, in_pairs, last_name, own_variables, walk

LOOPS = (ast.For, ast.AsyncFor, ast.While)
BODIES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)


@dataclass(frozen=True)
class Place:
    """A statement's place: the suite that holds it and its index there."""

    parent: ast.AST
    suite: tuple[ast.stmt, ...]
    index: int


def statement_of(module: Module, node: ast.AST) -> ast.stmt:
    """The innermost statement that ``node`` is part of, or is."""
    if isinstance(node, ast.stmt):
        return node
    for parent in module.ancestors(node):
        if isinstance(parent, ast.stmt):
            return parent
    raise ValueError("a node outside of any statement")


def suites(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the suites of a compound statement or body, in order."""
    for field in ("body", "orelse", "finalbody"):
        suite = getattr(node, field, None)
        if isinstance(suite, list) and suite and isinstance(suite[0], ast.stmt):
            yield suite
    for handler in getattr(node, "handlers", []):
        yield handler.body
    for case in getattr(node, "cases", []):
        yield case.body


def place(module: Module, statement: ast.stmt) -> Place:
    """Where the statement stands."""
    parent = module.parents[statement]
    for suite in suites(parent):
        for index, candidate in enumerate(suite):
            if candidate is statement:
                return Place(parent, tuple(suite), index)
    raise ValueError("a statement outside of its parent's suites")


def body_of(module: Module, node: ast.AST) -> ast.AST:
    """The function or module whose body runs ``node``; class bodies run with what is around them."""
    for parent in module.ancestors(node):
        if isinstance(parent, BODIES):
            return parent
    return module.tree


def top_statement(module: Module, statement: ast.stmt) -> ast.stmt:
    """The statement of the file's own suite that holds ``statement``."""
    found = statement
    for parent in module.ancestors(statement):
        if isinstance(parent, ast.stmt):
            found = parent
    return found


def unpacked(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each variable of an assignment with what it is given: all of the value where that is not spelt out."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        yield target, value
        return
    is_spelt_out = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
    for index, item in enumerate(target.elts):
        yield from unpacked(item, value.elts[index] if is_spelt_out else value)  # type: ignore[attr-defined]


def target_of(statement: ast.Assign | ast.AugAssign) -> ast.expr:
    """What a statement assigns, the first where it assigns several."""
    return statement.target if isinstance(statement, ast.AugAssign) else statement.targets[0]


def pairs_of(statement: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets of an assignment, each with what it is given."""
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from in_pairs(target, statement.value)


def enclosing(module: Module, node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the compound statements around ``node`` within its own body, the nearest first."""
    for parent in module.ancestors(node):
        if isinstance(parent, (*BODIES, ast.ClassDef)):
            return
        if isinstance(parent, ast.stmt):
            yield parent


def loop_around(module: Module, node: ast.AST) -> ast.For | ast.AsyncFor | ast.While | None:
    """The loop nearest around ``node`` within its own body."""
    return next((parent for parent in enclosing(module, node) if isinstance(parent, LOOPS)), None)


def opened_around(module: Module, node: ast.AST, name: str) -> ast.expr | None:
    """What the nearest ``with`` around ``node`` that opens something under a name opens: ``with open(path) as f``."""
    for around in enclosing(module, node):
        for item in around.items if isinstance(around, ast.With) else ():
            if isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == name:
                return item.context_expr
    return None


def tests_around(module: Module, node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the tests around ``node`` within its own body, those joined by ``and`` alone, and how they come out."""
    child = node
    for parent in module.ancestors(node):
        if isinstance(parent, BODIES):
            return
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
            holds = child in parent.body if isinstance(parent, ast.If) else child is parent.body
            for part in conjuncts(parent.test) if holds else [parent.test]:
                yield part, holds
        child = parent


def suites_around(module: Module, statement: ast.stmt) -> Iterator[tuple[tuple[ast.stmt, ...], int]]:
    """Yield the suites that a statement stands in, from the inside, up to that of the loop around it."""
    inner = statement
    for parent in [*enclosing(module, statement), None]:
        where = place(module, inner)
        yield where.suite, where.index
        if parent is None or isinstance(parent, LOOPS):
            return
        inner = parent


def given_last(statements: Iterable[ast.stmt], path: str) -> ast.expr | None:
    """What a variable is given, and nothing beside it, by the last of some statements that writes it.

    ``x[0] = 1.0`` gives it nothing, but changes what it holds.
    """
    last = next((item for item in reversed([*statements]) if path in writes(item)), None)
    if not isinstance(last, ast.Assign) or len(last.targets) != 1:
        return None
    target = last.targets[0]
    return last.value if isinstance(target, (ast.Name, ast.Attribute)) and path_of(target) == path else None


def given_once(nodes: Iterable[ast.AST], name: str) -> ast.expr | None:
    """What a variable is assigned, where one of some nodes alone writes it."""
    given = [node for node in nodes if name in writes_itself(node)]
    return given[0].value if len(given) == 1 and isinstance(given[0], ast.Assign) else None


def around_reads(module: Module, call: ast.Call, nodes: Iterable[ast.AST]) -> list[ast.AST]:
    """What stands right around each read, among some nodes, of the variable that a call's result is assigned to.

    What is right around the call where that assigns no variable; nothing where the variable is given something else.
    """
    parent = module.parents[call]
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1 or not isinstance(parent.targets[0], ast.Name):
        return [parent]
    name = parent.targets[0].id
    named = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
    loads = [node for node in named if isinstance(node.ctx, ast.Load)]
    return [module.parents[node] for node in loads] if len(loads) + 1 == len(named) else []


def statements_above(module: Module, statement: ast.stmt, body: ast.AST) -> Iterator[ast.stmt]:
    """The statements that have run when one is reached, within its body: those above it in the suites around it."""
    current = statement
    while True:
        where = place(module, current)
        yield from where.suite[: where.index]
        if where.parent is body or not isinstance(where.parent, (ast.stmt, ast.ExceptHandler)):
            return
        parent = where.parent if isinstance(where.parent, ast.stmt) else statement_of(module, where.parent)
        if isinstance(parent, (ast.With, ast.For)):
            yield ast.copy_location(ast.With(getattr(parent, "items", []), [ast.Pass()]), parent)
        current = parent


def given_just_above(module: Module, statement: ast.stmt, body: ast.AST, path: str) -> ast.expr | None:
    """What a variable is given last above a statement, where that is so on every way there."""
    above = sorted(statements_above(module, statement, body), key=lambda item: item.lineno)
    return given_last(above, path)


def given_at(module: Module, node: ast.Name) -> list[ast.expr]:
    """What assignments may have given a variable that it holds at a node; nothing where that is not known.

    That is the last one above that runs whenever the node does, and those on a way from there to the node. Another part
    of the function may give the same name something else.
    """
    if any(isinstance(item, (ast.Global, ast.Nonlocal)) and node.id in item.names for item in module.nodes):
        return []
    own = statement_of(module, node)
    for inner in (own, *enclosing(module, own)):
        where = place(module, inner)
        above = where.suite[: where.index]
        places = [at for at, item in enumerate(above) if isinstance(item, ast.Assign) and node.id in writes(item)]
        if places:
            return _given_in([*above[places[-1] :], *([] if inner is own else [inner])], node.id)
    return []


def _given_in(statements: list[ast.stmt], name: str) -> list[ast.expr]:
    """What a variable is given by statements and what is in them; nothing where it gets one of them in another way."""
    nodes = [item for statement in statements for item in walk_own(statement)]
    named = [item for item in nodes if isinstance(item, ast.Name) and item.id == name]
    written = [item for item in named if not isinstance(item.ctx, ast.Load)]
    given = [
        item.value for item in nodes if isinstance(item, ast.Assign) for target in item.targets if target in written
    ]
    return given if len(given) == len(written) else []


def choice_between(module: Module, one: ast.AST, other: ast.AST) -> ast.If | None:
    """The ``if`` of one body whose branches the two nodes stand in, a different one each: only one of them runs."""
    branches: dict[ast.AST, ast.AST] = {}
    child = one
    for parent in module.ancestors(one):
        branches[parent] = child
        child = parent
    child = other
    for parent in module.ancestors(other):
        if parent in branches:
            # The first parent that both have: above it, they stand in the same branch.
            first = branches[parent]
            if not isinstance(parent, ast.If) or parent.test in (first, child):
                return None
            return parent if (first in parent.body) != (child in parent.body) else None
        child = parent
    return None


def exclude_each_other(module: Module, one: ast.AST, other: ast.AST) -> bool:
    """Whether only one of two nodes runs: they stand in branches of one ``if``, or in two of which one holds at most.

    The latter compare the same with different constants: ``if mode == "off": ...`` and then ``if mode == "on": ...``.
    """
    if choice_between(module, one, other) is not None:
        return True
    ends: list[dict[str, object]] = []
    for node in (one, other):
        asked: dict[str, object] = {}
        for parent in enclosing(module, node):
            if isinstance(parent, ast.If) and any(node in set(walk(item)) for item in parent.body):
                asked |= _equals(parent.test)
        ends.append(asked)
    unlike = [path for path in ends[0].keys() & ends[1].keys() if ends[0][path] != ends[1][path]]
    if not unlike:
        return False
    # What is compared stays what it is: nothing in between writes it, or an owner of it.
    written = _written_between(module, one, other)
    return any(not any(path == item or path.startswith(f"{item}.") for item in written) for path in unlike)


def _equals(test: ast.expr) -> dict[str, object]:
    """What a condition says is equal to a constant."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return {}
    (constant,) = test.comparators
    path = path_of(test.left) if isinstance(test.left, (ast.Name, ast.Attribute)) else None
    return {path: constant.value} if path is not None and isinstance(constant, ast.Constant) else {}


def _written_between(module: Module, one: ast.AST, other: ast.AST) -> set[str]:
    """What is written between two nodes of a body; in a loop around both, what any of its rounds writes."""
    around = set(enclosing(module, other))
    loops = [item for item in enclosing(module, one) if isinstance(item, LOOPS) and item in around]
    if loops:
        return writes(loops[-1])
    first, last = sorted((getattr(one, "lineno", 0), getattr(other, "lineno", 0)))
    return {
        path
        for node in walk_body(body_of(module, one))
        if isinstance(node, ast.stmt) and first <= node.lineno <= last
        for path in writes(node)
    }


def is_elif(module: Module, branch: ast.If) -> bool:
    """Whether an ``if`` is the ``elif`` of another."""
    holder = module.parents[branch]
    return isinstance(holder, ast.If) and holder.orelse == [branch] and branch.col_offset == holder.col_offset


def own_parts(body: ast.AST) -> list[ast.AST]:
    """The statements of a body; a lambda's expression."""
    return [body.body] if isinstance(body, ast.Lambda) else list(getattr(body, "body", []))


def walk_body(body: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when ``body`` runs, nested functions left out, in order."""
    for part in own_parts(body):
        yield from walk_own(part)


def walk_own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield ``node`` and what runs with it, in order, without the bodies of nested functions."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        if not isinstance(current, FunctionNode):
            stack += children(current)[::-1]


def path_of(node: ast.AST) -> str | None:
    """``a.b.c`` for a name or a chain of attributes on one; the base of a subscript counts as its whole."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = path_of(node.value)
        return f"{base}.{node.attr}" if base is not None else None
    if isinstance(node, (ast.Subscript, ast.Starred)):
        return path_of(node.value)
    return None


def reading(node: ast.expr) -> ast.expr:
    """An assignment's target as an expression that reads it."""
    if isinstance(node, ast.Name):
        return ast.copy_location(ast.Name(node.id, ast.Load()), node)
    if isinstance(node, ast.Attribute):
        return ast.copy_location(ast.Attribute(node.value, node.attr, ast.Load()), node)
    return node


def reads(node: ast.AST) -> set[str]:
    """Paths that the node reads; what is only called is left out, its receiver is not."""
    found: set[str] = set()
    stack: list[ast.AST] = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, FunctionNode) and current is not node:
            continue
        if isinstance(current, COMPREHENSIONS):
            found |= _read_by_comprehension(current)
            continue
        if isinstance(current, ast.Call):
            if isinstance(current.func, ast.Attribute):
                stack.append(current.func.value)
            elif not isinstance(current.func, ast.Name):
                stack.append(current.func)
            stack.extend(current.args)
            stack.extend(item.value for item in current.keywords)
            continue
        if isinstance(current, (ast.Name, ast.Attribute)):
            path = path_of(current)
            if path is not None:
                if isinstance(getattr(current, "ctx", None), ast.Load):
                    found.add(path)
                continue
        stack.extend(children(current))
    return found


def read_for(statement: ast.stmt, wanted: set[str]) -> set[str]:
    """What a statement reads to write some paths: of a condition's sides, what leads to one of them."""
    if not isinstance(statement, (ast.If, ast.With, ast.AsyncWith)):
        return reads(statement)
    found: set[str] = set()
    for suite in suites(statement):
        paths = set(wanted)
        for inner in reversed(suite):
            if touches(writes(inner), paths):
                read = read_for(inner, paths)
                found |= read
                paths |= read
    return found


def _read_by_comprehension(node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> set[str]:
    """What a comprehension reads, but for its own variables, which may have the names of others."""
    first, own = node.generators[0].iter, own_variables(node)
    found: set[str] = set()
    for generator in node.generators:
        for item in (generator.iter, generator.target, *generator.ifs):
            found |= reads(item) if item is not first else set()
    for item in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
        found |= reads(item)
    return reads(first) | {path for path in found if path.partition(".")[0] not in own}


_MUTATORS = frozenset({"append", "extend", "insert", "add", "update", "appendleft", "setdefault"})


def writes(node: ast.AST) -> set[str]:
    """Paths that running the node assigns or grows (``losses.append(x)`` grows ``losses``)."""
    found = _WRITES.get(node)
    if found is None:
        found = _WRITES[node] = frozenset(_written(node))
    return set(found)


_WRITES: WeakKeyDictionary[ast.AST, frozenset[str]] = WeakKeyDictionary()
"""What was found of each node: a search back through assignments asks the same statements again and again."""


def _written(node: ast.AST) -> set[str]:
    found: set[str] = set()
    for current in walk_own(node):
        targets: list[ast.expr] = []
        if isinstance(current, ast.Assign):
            targets = list(current.targets)
        elif isinstance(current, (ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor, ast.NamedExpr)):
            targets = [current.target]
        elif isinstance(current, (ast.With, ast.AsyncWith)):
            targets = [item.optional_vars for item in current.items if item.optional_vars is not None]
        elif isinstance(current, ast.Call) and isinstance(current.func, ast.Attribute):
            if current.func.attr in _MUTATORS:
                path = path_of(current.func.value)
                if path is not None:
                    found.add(path)
            continue
        while targets:
            target = targets.pop()
            if isinstance(target, (ast.Tuple, ast.List)):
                targets.extend(target.elts)
                continue
            path = path_of(target)
            if path is not None:
                found.add(path)
    return found


def certainly_bound(statement: ast.stmt) -> set[str]:
    """Names that a statement binds whatever happens, where the program goes on behind it."""
    if isinstance(statement, ast.If):
        going_on = [suite for suite in (statement.body, statement.orelse) if not (suite and leaves(suite))]
        bound = [{name for item in suite for name in certainly_bound(item)} for suite in going_on]
        return set.intersection(*bound) if bound else set()
    if isinstance(statement, (ast.For, ast.While, ast.Try)):
        return set()
    if isinstance(statement, ast.With):
        names = {name for item in statement.body for name in certainly_bound(item)}
        return names | {last_name(item.optional_vars) for item in statement.items if item.optional_vars is not None}
    return writes(statement)


def writes_target(loop: ast.For | ast.AsyncFor) -> set[str]:
    """Paths that a loop assigns in its head."""
    found: set[str] = set()
    targets: list[ast.expr] = [loop.target]
    while targets:
        target = targets.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            targets.extend(target.elts)
        elif (path := path_of(target)) is not None:
            found.add(path)
    return found


def writes_itself(node: ast.AST) -> set[str]:
    """Paths that a statement assigns itself, not in its suites."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return writes_target(node)
    return writes(node) if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) else set()


def touches(paths: set[str], others: set[str]) -> bool:
    """Whether one of ``paths`` is one of ``others``, or a part or an owner of it."""
    if not paths or not others:
        return False
    if not paths.isdisjoint(others):
        return True
    return any(owner in others for path in paths for owner in _owners(path)) or any(
        owner in paths for path in others for owner in _owners(path)
    )


def _owners(path: str) -> Iterator[str]:
    """``a.b`` and ``a`` of ``a.b.c``."""
    while "." in path:
        path = path.rpartition(".")[0]
        yield path
