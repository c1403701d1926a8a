"""Whether a training loop reads its model from the variable that holds the prepared one."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from amp_rules.flow.cells import CellKey
from amp_rules.flow.values import CallSite, Value
from amp_rules.plan.model_homes.home import Home
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.torch.models import RETURNS_RECEIVER

_MAX_STEPS = 200
_MAX_HANDS = 12
_ITEM = "item"


@dataclass(frozen=True)
class _Source:
    """An expression, and the item of it that is looked for: ``("net",)`` of ``{"net": net}``."""

    node: ast.expr
    scope: Scope
    body: ast.AST
    path: tuple[object, ...] = ()


def reaches(program: Program, home: Home, site: Site) -> bool:
    """Whether the callee of the training call is read from the home's variable after it was prepared."""
    assert isinstance(site.node, ast.Call)
    assignments = _assignments(program)
    pending = [_Source(program.callee(site.node, site.scope), site.scope, site.body)]
    seen: set[tuple[object, ...]] = set()
    while pending:
        source = _plain(program, pending.pop())
        key = program.flow.key(source.node, source.scope)
        if not source.path and key == home.key:
            continue
        mark = (key or source.node, source.path)
        if mark in seen:
            continue
        seen.add(mark)
        found = list(_sources(program, assignments, source, key))
        if not found or len(seen) > _MAX_STEPS:
            return False
        pending.extend(found)
    return True


@dataclass(frozen=True)
class _Assignment:
    """A variable and what a statement gives it; ``index`` says which item of the value, where it is taken apart."""

    statement: ast.Assign
    scope: Scope
    body: ast.AST
    target: ast.expr
    value: ast.expr
    index: tuple[int, ...]


_Assignments = dict[tuple[object, object], list[_Assignment]]
_KNOWN: WeakKeyDictionary[Program, _Assignments] = WeakKeyDictionary()


@dataclass(frozen=True)
class Taken:
    """A statement that gives a variable what a call has made."""

    module: Module
    statement: ast.stmt
    variable: str


def taken_from_call(program: Program, site: Site, modules: set[Module]) -> Taken | None:
    """The one statement of the files by which the expression gets what a function of the project gave.

    None where the way back forks or leaves the files before.
    """
    assert isinstance(site.node, ast.expr)
    source = _plain(program, _Source(site.node, site.scope, site.body))
    first: _Assignment | None = None
    for _ in range(_MAX_HANDS):
        origin = _only_origin(program, source)
        if origin is None:
            return None
        if isinstance(origin, _Source):
            source = _plain(program, origin)
            continue
        # What is taken apart here, ``train_loader, test_loader = loaders``, another variable holds with the others.
        first = first if first is not None and first.index else origin
        source = _plain(program, _Source(origin.value, origin.scope, origin.body))
        if isinstance(source.node, ast.Call):
            variable = blocks.path_of(first.target)
            is_own = bool(program.flow.callees(source.node)) and first.scope.module in modules
            return Taken(first.scope.module, first.statement, variable) if is_own and variable is not None else None
    return None


def may_come_from(program: Program, place: Taken, site: Site, made: Collection[Value]) -> bool:
    """Whether an expression may hold what a statement gives its variable.

    Args:
        program: the program.
        place: the statement and its variable.
        site: the expression.
        made: what it may hold: the way back ends where one of these is made.
    """
    assert isinstance(site.node, ast.expr)
    assignments = _assignments(program)
    ends = {value.site for value in made}
    pending = [_Source(site.node, site.scope, site.body)]
    seen: set[tuple[object, ...]] = set()
    while pending:
        source = _plain(program, pending.pop())
        key = program.flow.key(source.node, source.scope)
        mark = (key or source.node, source.path)
        if source.node in ends or mark in seen:
            continue
        seen.add(mark)
        given = assignments.get(key, []) if key is not None else []
        statements = {(item.statement, blocks.path_of(item.target)) for item in given}
        if (place.statement, place.variable) in statements:
            return True
        found = list(_sources(program, assignments, source, key))
        if not found or len(seen) > _MAX_STEPS:
            return True
        pending.extend(found)
    return False


def assignment_of(program: Program, site: Site) -> Taken | None:
    """The one assignment by which the variable of an expression gets its value, through parameters."""
    assert isinstance(site.node, ast.expr)
    source = _plain(program, _Source(site.node, site.scope, site.body))
    for _ in range(_MAX_HANDS):
        origin = _only_origin(program, source)
        if origin is None:
            return None
        if isinstance(origin, _Source):
            source = _plain(program, origin)
            continue
        # What is handed on under another name is the same object.
        plain = _plain(program, _Source(origin.value, origin.scope, origin.body, origin.index))
        if plain.path or not isinstance(plain.node, (ast.Name, ast.Attribute)):
            variable = blocks.path_of(origin.target)
            return Taken(origin.scope.module, origin.statement, variable) if variable else None
        source = plain
    return None


def _only_origin(program: Program, source: _Source) -> _Assignment | _Source | None:
    """The one assignment to a variable, or the one argument for a parameter; None where there are more, or none."""
    key = program.flow.key(source.node, source.scope)
    if source.path or key is None:
        return None
    assigned = _assignments(program).get(key, [])
    given = list(_from_callers(program, source.node.id, source)) if isinstance(source.node, ast.Name) else []
    found: list[_Assignment | _Source] = [*assigned, *given]
    return found[0] if len(found) == 1 else None


def _assignments(program: Program) -> _Assignments:
    """What every variable of the program is assigned."""
    known = _KNOWN.get(program)
    if known is not None:
        return known
    found: defaultdict[tuple[object, object], list[_Assignment]] = defaultdict(list)
    for other, body, scope in program.nodes():
        for target in other.targets if isinstance(other, ast.Assign) else ():
            assert isinstance(other, ast.Assign)
            if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                entry: tuple[object, object] = (_ITEM, target.slice.value)
                found[entry].append(_Assignment(other, scope, body, target, other.value, ()))
            for single, value, index in _pairs(target, other.value):
                key = program.flow.key(blocks.reading(single), scope)
                if key is not None:
                    found[key].append(_Assignment(other, scope, body, single, value, index))
    _KNOWN[program] = found
    return found


def _plain(program: Program, source: _Source) -> _Source:
    """Without methods that give the object itself, and with what is taken out of it as a path."""
    node: ast.expr = source.node
    path = source.path
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr not in RETURNS_RECEIVER or program.flow.callees(node):
                break
            node = node.func.value
        elif isinstance(node, ast.Attribute) and not path and node.attr in ("forward", "__call__"):
            node = node.value
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            path = (node.slice.value, *path)
            node = node.value
        elif isinstance(node, ast.Attribute) and program.flow.key(node, source.scope) is None:
            path = (node.attr, *path)
            node = node.value
        else:
            break
    return _Source(node, source.scope, source.body, path)


def _sources(program: Program, assignments: _Assignments, source: _Source, key: CellKey | None) -> Iterator[_Source]:
    """Where the item of the expression comes from."""
    node, path = source.node, source.path
    if path and (_ITEM, path[0]) in assignments and not _is_rest(program, source):
        return  # ``parts["net"] = ...``: which of the two it holds is a question of time
    if isinstance(node, (ast.Tuple, ast.List)) and path:
        if isinstance(path[0], int) and -len(node.elts) <= path[0] < len(node.elts):
            yield _Source(node.elts[path[0]], source.scope, source.body, path[1:])
    elif isinstance(node, ast.Dict) and path:
        for name, value in zip(node.keys, node.values, strict=True):
            if isinstance(name, ast.Constant) and name.value == path[0]:
                yield _Source(value, source.scope, source.body, path[1:])
    elif isinstance(node, ast.IfExp):
        for branch in (node.body, node.orelse):
            yield _Source(branch, source.scope, source.body, path)
    elif isinstance(node, ast.Call):
        yield from _from_call(program, source)
    elif key is not None:
        yield from _from_assignments(program, assignments, key, path)
        if isinstance(node, ast.Name):
            yield from _from_callers(program, node.id, source)
        elif isinstance(node, ast.Attribute):
            yield from _from_records(program, node, source)


def _from_call(program: Program, source: _Source) -> Iterator[_Source]:
    assert isinstance(source.node, ast.Call)
    callees = program.flow.callees(source.node)
    for info in sorted(callees, key=lambda item: item.place):
        if info.name != "__init__":
            for returned in info.returns:
                yield _Source(returned, program.flow.scopes[info.node], info.node, source.path)
    if source.path:
        given = program.flow.field_of(source.node, source.path[0], source.scope)
        if given is not None:
            yield _Source(given, source.scope, source.body, source.path[1:])


def _from_assignments(
    program: Program, assignments: _Assignments, key: CellKey, path: tuple[object, ...]
) -> Iterator[_Source]:
    for item in assignments.get(key, ()):
        plain = _plain(program, _Source(item.value, item.scope, item.body, (*item.index, *path)))
        if plain.path or program.flow.key(plain.node, item.scope) != key:
            yield plain


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr, tuple[int, ...]]]:
    """The variables of an assignment, each with what it is given."""
    if isinstance(target, (ast.Name, ast.Attribute)):
        yield target, value, ()
    elif isinstance(target, ast.Tuple):
        whole = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
        for index, element in enumerate(target.elts):
            if isinstance(element, (ast.Name, ast.Attribute)):
                if whole:
                    yield element, value.elts[index], ()  # type: ignore[attr-defined]
                else:
                    yield element, value, (index,)


def _from_callers(program: Program, name: str, source: _Source) -> Iterator[_Source]:
    info = program.function_of(source.scope.owner(name).node)
    if info is None or name == info.receiver:
        return
    path, rest, gathered = source.path, info.node.args.vararg, info.node.args.kwarg
    named = [item for item in info.positional if item != info.receiver]
    if rest is not None and rest.arg == name:
        # ``args[0]`` is the first argument that no parameter takes.
        if path and isinstance(path[0], int) and path[0] >= 0:
            for caller in program.flow.callers(info):
                yield from _at(len(named) + path[0], caller, path[1:])
        return
    if name not in info.parameters:
        return
    if gathered is not None and gathered.arg == name:
        # ``kwargs["model"]`` is the argument of that name, unless a parameter takes it.
        if not path or not isinstance(path[0], str) or path[0] in info.parameters:
            return
        name, path = path[0], path[1:]
    for caller in program.flow.callers(info):
        value = info.argument(caller.call, name)
        if isinstance(value, ast.Starred):
            yield from _at(named.index(name), caller, path) if name in named else ()
        elif value is not None:
            site = calling(caller)
            yield _Source(value, site.scope, site.body, path)


def _is_rest(program: Program, source: _Source) -> bool:
    """Whether an expression is ``args`` of ``*args``, a tuple: nobody puts anything into it."""
    if not isinstance(source.node, ast.Name):
        return False
    info = program.function_of(source.scope.owner(source.node.id).node)
    rest = info.node.args.vararg if info is not None else None
    return rest is not None and rest.arg == source.node.id


def _at(place: int, caller: CallSite, path: tuple[object, ...]) -> Iterator[_Source]:
    """The argument at a place, which may be one of those that are handed on: ``super().__init__(*args)``."""
    site = calling(caller)
    for index, given in enumerate(caller.call.args[: place + 1]):
        if isinstance(given, ast.Starred):
            yield _Source(given.value, site.scope, site.body, (place - index, *path))
            return
    if place < len(caller.call.args):
        yield _Source(caller.call.args[place], site.scope, site.body, path)


def _from_records(program: Program, node: ast.Attribute, source: _Source) -> Iterator[_Source]:
    """What the constructor of a data class or named tuple was given for the attribute."""
    for value in program.flow.values(node.value, source.scope):
        located = program.locate(value.site) if isinstance(value.site, ast.Call) else None
        if located is None or not isinstance(value.site, ast.Call):
            continue
        body, scope = located
        given = program.flow.field_of(value.site, node.attr, scope)
        if given is not None:
            yield _Source(given, scope, body, source.path)
