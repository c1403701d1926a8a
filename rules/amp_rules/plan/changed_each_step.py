"""Numbers that each step changes by something that no batch gives: a temperature that shrinks, a weight that grows."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.training_loops import counts_up
from amp_rules.plan.ways_to_show import SHOWING_OR_WRITING
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import called_name, walk

_BOUNDS = frozenset({"max", "min", "float", "abs"})
"""Functions of a number and its bounds."""

_SCALES = (ast.Mult, ast.Div, ast.Pow)


_CALLS = 2
"""Functions that call each other between a loop and the method that changes a number: ``step`` and ``anneal``."""

_Reader = tuple[Scope, ast.AST]


def changed_each_step(program: Program, loop: BatchLoop) -> Iterator[Site]:
    """Yield statements such as ``temperature *= 0.99``, of the loop or of methods that each round calls.

    Not those of what is only shown, and not those under a condition that asks for more than the number itself.
    """
    bodies = [item for item in _always_called(program, loop) if item.receiver is not None]
    nodes = {info: list(program.nodes_of(info.node)) for info in bodies}
    inner = [(loop.scope, node) for node in loop.inner]
    read = [(program.flow.scopes[info.node], node) for info in bodies for node in nodes[info]]
    yield from _within(program, loop, loop.inner, [*inner, *read], blocks.writes_itself(loop.loop))
    for info in bodies:
        scope = program.flow.scopes[info.node]
        for found in _within(
            program, Site(scope.module, scope, info.node, info.node), nodes[info], [*read, *inner], set()
        ):
            if _target(found.node).startswith(f"{info.receiver}."):
                yield found


def _always_called(program: Program, loop: BatchLoop) -> list[FunctionFacts]:
    """The functions that every round calls, in the order of the text."""
    found: dict[FunctionFacts, None] = {}
    suites: list[Sequence[ast.stmt]] = [loop.loop.body]
    for _ in range(_CALLS):
        calls = [node for suite in suites for node in _always(suite) if isinstance(node, ast.Call)]
        infos = {info for call in calls for info in program.flow.callees(call)} - found.keys()
        found |= dict.fromkeys(sorted(infos, key=lambda item: item.place))
        suites = [info.node.body for info in infos if not isinstance(info.node, ast.Lambda)]
    return list(found)


def _always(suite: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    for item in suite:
        if isinstance(item, (ast.With, ast.AsyncWith)):
            yield from _always(item.body)
        elif isinstance(item, (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)):
            yield from blocks.walk_own(item)


def _within(
    program: Program, site: Site, nodes: list[ast.AST], readers: list[_Reader], head: set[str]
) -> Iterator[Site]:
    steps = [node for node in nodes if isinstance(node, (ast.Assign, ast.AugAssign)) and _changes_itself(node)]
    if not steps:
        return
    inside = set(nodes)
    written = head.union(*map(blocks.writes_itself, nodes))
    for node in steps:
        path = _target(node)
        others = [item for item in nodes if item is not node and path in blocks.writes_itself(item)]
        if path in head or any(not _limits(site.module, item, path) for item in others):
            continue
        if any(path.startswith(f"{name}.") for name in written):
            continue  # another object in each round: ``batch.x = batch.x * 100``
        if blocks.touches(blocks.reads(node.value) - {path}, written) or not _is_asked_alone(site, node, path, inside):
            continue
        if _is_rate(node) or any(_counts(program, site, scope, reader, node) for scope, reader in readers):
            yield Site(site.module, site.scope, site.body, node)


def _is_rate(node: ast.Assign | ast.AugAssign) -> bool:
    target = blocks.target_of(node)
    return isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and target.slice.value == "lr"


def _target(node: ast.AST) -> str:
    """The variable that a statement changes; of an entry, ``group["lr"]``, its text."""
    assert isinstance(node, (ast.Assign, ast.AugAssign))
    target = blocks.target_of(node)
    if isinstance(target, (ast.Name, ast.Attribute)):
        return blocks.path_of(target) or ""
    return ast.unparse(target) if _is_rate(node) else ""


def _changes_itself(node: ast.Assign | ast.AugAssign) -> bool:
    """``rate *= 0.99``, ``weight = min(1.0, weight + 0.01)``; not what adds up, or counts."""
    path = _target(node)
    if not path or counts_up(node) or (isinstance(node, ast.Assign) and len(node.targets) > 1):
        return False
    if isinstance(node, ast.AugAssign):
        return _is_change(node.op, node.value) and _is_plain(node.value)
    value = node.value
    return _is_plain(value) and any(
        isinstance(part, ast.BinOp)
        and (
            (ast.unparse(part.left) == path and _is_change(part.op, part.right))
            or (ast.unparse(part.right) == path and _is_change(part.op, part.left))
        )
        for part in walk(value)
    )


def _is_change(operation: ast.operator, by: ast.expr) -> bool:
    """Whether a number is scaled, or a fraction is added: whole numbers count rounds or samples, and names may."""
    if isinstance(operation, _SCALES):
        return True
    return (
        isinstance(operation, (ast.Add, ast.Sub)) and isinstance(by, ast.Constant) and isinstance(by.value, float)
    ) or (isinstance(operation, ast.Sub) and isinstance(by, (ast.Name, ast.Attribute)))


def _is_plain(node: ast.expr) -> bool:
    """Whether an expression is arithmetic of variables and constants, within bounds."""
    return all(
        called_name(part) in _BOUNDS
        if isinstance(part, ast.Call)
        else isinstance(
            part,
            (
                ast.BinOp,
                ast.UnaryOp,
                ast.Name,
                ast.Attribute,
                ast.Constant,
                ast.operator,
                ast.unaryop,
                ast.expr_context,
            ),
        )
        for part in walk(node)
    )


def _limits(module: Module, node: ast.AST, path: str) -> bool:
    """``temperature = max(temperature, 0.5)``, ``if temperature < 0.5: temperature = 0.5``."""
    if not isinstance(node, ast.Assign) or not _is_plain(node.value):
        return False
    if path in blocks.reads(node.value):
        return True
    around = module.parents[node]
    return isinstance(around, ast.If) and path in blocks.reads(around.test)


def _is_asked_alone(site: Site, node: ast.stmt, path: str, inside: set[ast.AST]) -> bool:
    """Whether every round changes the number, as long as it is within bounds of its own."""
    for parent in blocks.enclosing(site.module, node):
        if parent not in inside:
            return True
        if isinstance(parent, ast.If) and path in blocks.reads(parent.test):
            continue
        of_groups = isinstance(parent, ast.For) and (blocks.path_of(parent.iter) or "").endswith(".param_groups")
        if not of_groups and not isinstance(parent, (ast.With, ast.AsyncWith)):
            return False
    return True


def _counts(program: Program, site: Site, scope: Scope, reader: ast.AST, node: ast.Assign | ast.AugAssign) -> bool:
    """Whether something reads the number, and does not only show it or set a bound to it."""
    if not isinstance(reader, (ast.Name, ast.Attribute)) or not isinstance(reader.ctx, ast.Load):
        return False
    path, module = _target(node), scope.module
    target = blocks.target_of(node)
    if isinstance(target, ast.Attribute) and isinstance(reader, ast.Attribute):
        key = program.flow.key(blocks.reading(target), site.scope)
        is_same = reader.attr == target.attr and (
            program.flow.key(reader, scope) == key if key is not None else blocks.path_of(reader) == path
        )
    else:
        is_same = blocks.path_of(reader) == path and scope is site.scope
    if not is_same:
        return False
    for parent in module.ancestors(reader):
        if parent is node or isinstance(parent, ast.JoinedStr):
            return False
        if isinstance(parent, ast.Call) and called_name(parent) in SHOWING_OR_WRITING | {"append"}:
            return False
        if isinstance(parent, ast.stmt):
            if isinstance(parent, ast.If):
                return node not in set(walk(parent)) and not all(_limits(module, item, path) for item in parent.body)
            return not (isinstance(parent, ast.Assign) and _limits(module, parent, path) and _target(parent) == path)
    return False
