"""Average meters: objects that keep a sum, a count and their quotient over the batches of one process."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.plan.clock_times import is_time
from amp_rules.plan.training_loops import TrainingLoop
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.syntax import walk
from amp_rules.torch.distributed import BROADCASTS, EXCHANGES

_KEPT = frozenset({"sum", "count", "avg"})
_OTHERS = frozenset({"val", "value", "last"})
"""What else an update may set: what was seen last, which stays that of one process."""


def is_meter(program: Program, info: ClassInfo) -> bool:
    """Whether a class is the average meter of PyTorch's ImageNet example, by what its ``update`` does.

    The average may be a property, which is worked out where it is read. A method may reduce what it keeps.
    """
    update = info.find_method("update")
    if update is None or len(update.parameters) != 3 or len(info.mro()) > 1:
        return False
    receiver, value, number = update.parameters
    seen: set[str] = set()
    for statement in update.node.body if isinstance(update.node, ast.FunctionDef) else ():
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        name = _own_attribute(statement, receiver)
        if name is None or not _does(statement, name, receiver, value, number):
            return False
        seen.add(name)
    if averages_itself(info):
        seen.add("avg")
    known = ("__init__", "reset", "update", reduction_of(program, info))
    others = (method for name, method in info.facts.methods.items() if name not in known)
    return seen >= _KEPT and not any(_writes_kept(method.node) for method in others)


def are_meters(program: Program, values: Collection[Value]) -> bool:
    """Whether all that a variable may hold is such meters of the project."""
    return bool(values) and all(value.kind == "instance" and is_meter(program, value.ref) for value in values)


def reduction_of(program: Program, info: ClassInfo) -> str | None:
    """The method of a meter that makes what it keeps that of all processes: ``meter.all_reduce()``."""
    exchanging = {site.body for site in program.calls_to(EXCHANGES - BROADCASTS)}
    found = [
        name
        for name, method in info.facts.methods.items()
        if method.node in exchanging and len(method.parameters) == 1 and _writes_kept(method.node)
    ]
    return found[0] if len(found) == 1 else None


def averages_itself(info: ClassInfo) -> bool:
    """Whether the average of a meter is a property that divides the sum by the count, so that nothing can set it.

    The property may have any name, where no method keeps an average beside it.
    """
    methods = info.facts.methods.values()
    keeps = (part.attr for method in methods for part in walk(method.node) if isinstance(part, ast.Attribute))
    return any(map(_gives_average, methods)) and ("avg" in info.facts.methods or "avg" not in keeps)


def _gives_average(method: FunctionFacts) -> bool:
    if not isinstance(method.node, ast.FunctionDef):
        return False
    if [blocks.path_of(item) for item in method.node.decorator_list] != ["property"]:
        return False
    given = [item for item in method.returns if not isinstance(item, ast.Constant)]
    return len(given) == 1 and method.receiver is not None and _is_average(given[0], method.receiver)


def _own_attribute(statement: ast.stmt, receiver: str) -> str | None:
    """The attribute that a statement sets: ``sum`` of ``self.sum += value * n``."""
    target: ast.expr | None = None
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        target = statement.target
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    path = blocks.path_of(target) if target is not None else None
    return path.removeprefix(f"{receiver}.") if path is not None and path.startswith(f"{receiver}.") else None


def _does(statement: ast.stmt, name: str, receiver: str, value: str, number: str) -> bool:
    """Whether the statement does to an attribute what a meter does."""
    assert isinstance(statement, (ast.Assign, ast.AugAssign))
    given, adds = statement.value, isinstance(statement, ast.AugAssign)
    if name in _OTHERS:
        return not adds and blocks.path_of(given) == value
    if name == "count":
        return adds and blocks.path_of(given) == number
    if name == "sum":
        product = _without_float(given) if isinstance(_without_float(given), ast.BinOp) else None
        return adds and isinstance(product, ast.BinOp) and _multiplies(product, value, number)
    return name == "avg" and not adds and _is_average(given, receiver)


def _without_float(node: ast.expr) -> ast.expr:
    """``value`` of ``float(value)``."""
    if isinstance(node, ast.Call) and blocks.path_of(node.func) == "float" and len(node.args) == 1:
        return node.args[0]
    return node


def _multiplies(product: ast.BinOp, value: str, number: str) -> bool:
    factors = {blocks.path_of(_without_float(item)) for item in (product.left, product.right)}
    return isinstance(product.op, ast.Mult) and factors == {value, number}


def _is_average(given: ast.expr, receiver: str) -> bool:
    """Whether an expression divides the sum by the count, which it may keep from being 0."""
    quotients = [node for node in walk(given) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    return (
        len(quotients) == 1
        and blocks.path_of(quotients[0].left) == f"{receiver}.sum"
        and f"{receiver}.count" in blocks.reads(quotients[0].right)
        and blocks.reads(given) <= {receiver, f"{receiver}.sum", f"{receiver}.count", "max"}
    )


def _writes_kept(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Attribute) and part.attr in _KEPT and isinstance(part.ctx, ast.Store)
        for part in walk(node)
    )


def meters_of(program: Program, loop: TrainingLoop) -> Iterator[tuple[str, bool, str | None]]:
    """The variables of meters that a loop fills, that begin anew before it, and whose averages count after it.

    Each comes with whether the meter works its average out where it is read, and its own method that reduces it.
    """
    inside = set(loop.inner)
    updates = list(_updates(program, blocks.walk_body(loop.body), loop))
    for path in dict.fromkeys(path for path, call in updates if call in inside):
        calls = [call for other, call in updates if other == path]
        given = [item for call in calls for item in call.args]
        if not all(call in inside for call in calls) or any(is_time(program, loop, item) for item in given):
            continue
        if _begins(program, loop, path) and _counts_after(loop, path):
            made = program.flow.values(ast.Name(path, ast.Load()), loop.scope)
            classes = {value.ref for value in made if value.kind == "instance"}
            kinds = {(averages_itself(info), reduction_of(program, info)) for info in classes}
            if len(kinds) == 1:
                yield path, *kinds.pop()


def _updates(program: Program, nodes: Iterator[ast.AST], loop: TrainingLoop) -> Iterator[tuple[str, ast.Call]]:
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
            held = node.func.value
            if isinstance(held, ast.Name) and loop.scope.owner(held.id) is loop.scope:
                if are_meters(program, program.flow.values(held, loop.scope)):
                    yield held.id, node


def _begins(program: Program, loop: TrainingLoop, path: str) -> bool:
    """Whether the meter is made, or set back, before each run of the loop, and at no other place in between."""
    before = [item for suite, index in blocks.suites_around(loop.module, loop.loop) for item in suite[:index]]
    again = any(_is_new(program, item, path, loop) for item in before)
    return again and not any(_assigns(node, path) or _is_reset(node, path) for node in loop.inner)


def _is_new(program: Program, statement: ast.stmt, path: str, loop: TrainingLoop) -> bool:
    if isinstance(statement, ast.Expr):
        return _is_reset(statement.value, path)
    if not isinstance(statement, ast.Assign) or not _assigns(statement, path):
        return False
    made = set(walk(statement.value))
    return all(value.site in made for value in program.flow.values(ast.Name(path, ast.Load()), loop.scope))


def _assigns(node: ast.AST, path: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(part, ast.Name) and part.id == path for target in targets for part in walk(target))


def _is_reset(node: ast.AST, path: str) -> bool:
    return isinstance(node, ast.Call) and blocks.path_of(node.func) == f"{path}.reset"


def _counts_after(loop: TrainingLoop, path: str) -> bool:
    """Whether the meter is read, shown or handed on after the loop."""
    return any(
        isinstance(node, ast.Name) and node.id == path and isinstance(node.ctx, ast.Load)
        for suite, index in blocks.suites_around(loop.module, loop.loop)
        for item in suite[index + 1 :]
        for node in blocks.walk_own(item)
    )
