"""Numbers that a training loop makes of the batches of one process, and that are shown in whatever way.

Sums, exponential averages and numbers that an array of the batch gave, in loops over shared loaders and in those that
draw their batches.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.clock_times import times
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.rank_numbers import ADDS_UP, Told, all_loops, averaged_over_ranks, of_the_share
from amp_rules.plan.training_loops import Counted, TrainingLoop, added_to, variable
from amp_rules.plan.ways_to_show import WaysToShow, is_shown
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import called_name, children, walk
from amp_rules.torch.containers import TALLIES

_COUNTS = frozenset({"size", "shape", "device", "dtype", "numel", "dim", "ndim"})
"""Attributes of a batch that are none of its numbers."""

_GROWING = frozenset({"append", "extend", "insert", "appendleft"})

_JOINING = frozenset({"append", "concatenate", "concat", "cat", "vstack", "hstack"})
"""Functions that give an array and more of it."""

_ROWS = (ast.Tuple, ast.List)

_LIMITS = frozenset({"max", "min", "maximum", "minimum"})
_TALLYING = frozenset({"add", "update"})

_MEAN = (
    "is a mean over the batches of one process: rank 0's share of the data",
    "are means over the batches of one process: rank 0's share of the data",
)
_EXTREME = (
    "is an extreme of the batches of one process: rank 0's share of the data",
    "are extremes of the batches of one process: rank 0's share of the data",
)
_SUMMED = (
    "adds up the batches of one process, about 1/N of the data",
    "add up the batches of one process, about 1/N of the data",
)
_GATHERED = (
    "holds the results of one process, about 1/N of the data",
    "hold the results of one process, about 1/N of the data",
)


def kept_numbers(processes: Distribution, named: frozenset[tuple[ast.AST, str]]) -> Iterator[Told]:
    """Yield what a loop adds up or averages of its batches and what is shown, but for what is ``named`` already."""
    loops = [*loops_of_batches(processes)]
    ways = WaysToShow(processes) if loops else None
    for loop in loops:
        share = [*of_the_share(processes, loop)]
        kept: dict[str, list[ast.AST]] = {}
        for item in share:
            for path in (*added_to(item), *_averages(item), *_extremes(item)):
                if (loop.body, path) not in named:
                    kept.setdefault(path, []).append(item)
        if not kept or ways is None:
            continue
        place = Counted(loop.module, loop.scope, loop.body, loop.node, ())
        made = made_of_batch(processes, loop)
        meets = exchanges_of(processes, loop)[0]
        averaged = averaged_over_ranks(processes)[0]
        left_out = processes.sums.trained_on(place) | times(processes.program, loop)
        for path, nodes in kept.items():
            if path in left_out:
                continue
            # Of several for one variable the last is named: ``sums[name][0] += loss``, ``sums[name][1] += 1``.
            for node in reversed(nodes):
                if _begins_each_round(loop, path, node) or meets(node) or _holds(node, averaged):
                    continue
                counts = not is_made_of(node, made - {path}) and _counts_of_batch(loop, node, made)
                if not counts and not any(is_made_of(part, made - {path}) for part in _added(node)):
                    continue
                shown = ways.of_loop(loop, loop.inner, path)
                # A count that is shown alone is told, or understood, elsewhere.
                if shown is not None and not (counts and shown == "alone"):
                    texts = ADDS_UP if shown == "divided" else _SUMMED
                    if path in (*_averages(node), *_extremes(node)):
                        texts = _MEAN if path in _averages(node) else _EXTREME
                    yield Told(Site(loop.module, loop.scope, loop.body, node), path, *texts)
                    break


def _added(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is added, and the place in a table where it is: ``confusion[label, guess] += 1``."""
    yield getattr(node, "value", node)
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
        yield node.target.slice


def gathered(processes: Distribution, named: frozenset[tuple[ast.AST, str]]) -> Iterator[Told]:
    """Yield lists and arrays that a loop fills with outputs, labels or losses, where a score of them is shown."""
    loops = [*loops_of_batches(processes)]
    ways = WaysToShow(processes, scores=True) if loops else None
    for loop in loops:
        filled: dict[str, _Filling] = {}
        for item in of_the_share(processes, loop):
            filling = _fills(processes, loop, item)
            if filling is not None and (loop.body, filling.path) not in named:
                filled[filling.path] = filling
        if not filled or ways is None:
            continue
        made = made_of_batch(processes, loop)
        left_out = _used(loop) | times(processes.program, loop)
        for path, (_, node, given) in filled.items():
            if path in left_out or not any(is_made_of(value, made - {path}) for value in given):
                continue
            if _begins_each_round(loop, path, node):
                continue
            if (ways.of_loop(loop, [], path) or ways.of_loop(loop, loop.inner, path)) is not None:
                yield Told(Site(loop.module, loop.scope, loop.body, node), path, *_GATHERED)


class _Filling(NamedTuple):
    """A list or an array that is filled, the node where it is, and what it gets."""

    path: str
    node: ast.AST
    given: list[ast.expr]


def _fills(processes: Distribution, loop: TrainingLoop | BatchLoop, node: ast.AST) -> _Filling | None:
    """``kept.append(x)``, ``losses[step] = loss.item()``, ``kept = np.append(kept, x)``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _grows(processes, loop, node):
        path = variable(node.func.value)
        return _Filling(path, node, node.args) if path is not None else None
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if not isinstance(node, ast.Assign) or target is None:
        return None
    if isinstance(target, ast.Subscript) and isinstance(target.slice, (ast.Name, ast.BinOp)):
        path = variable(target.value)
        return _Filling(path, node, [node.value]) if path is not None else None
    return _joins(node, target)


def _joins(node: ast.Assign, target: ast.expr) -> _Filling | None:
    """``kept = np.append(kept, x)``, ``kept = torch.cat((kept, x))``."""
    if not (isinstance(node.value, ast.Call) and called_name(node.value) in _JOINING):
        return None
    parts = [item for given in node.value.args for item in (given.elts if isinstance(given, _ROWS) else [given])]
    path = variable(target)
    if path is None or path not in map(variable, parts):
        return None
    return _Filling(path, node, [item for item in parts if variable(item) != path])


def _grows(processes: Distribution, loop: TrainingLoop | BatchLoop, call: ast.Call) -> bool:
    """Whether a method adds to a list, or to what tells values apart or counts them: ``seen.update(labels)``."""
    if called_name(call) in _GROWING:
        return called_name(call) == "insert" or len(call.args) == 1  # not ``np.append(kept, x)``
    if called_name(call) not in _TALLYING or not isinstance(call.func, ast.Attribute):
        return False
    values = processes.program.flow.values(call.func.value, loop.scope)
    return bool(values) and all(value.ref in TALLIES for value in values)


def _used(loop: TrainingLoop | BatchLoop) -> set[str]:
    """The variables that a loop reads otherwise than to fill or to show them: memories that the training uses."""
    parents = loop.module.parents
    joined = [
        filling
        for item in loop.inner
        if isinstance(item, ast.Assign) and (filling := _joins(item, item.targets[0])) is not None
    ]
    grown = {(filling.path, part) for filling in joined for part in walk(filling.node)}
    return {
        path
        for node in loop.inner
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
        if getattr(parents[node], "attr", "") not in _GROWING | _TALLYING and (path := variable(node)) is not None
        if not isinstance(getattr(parents[node], "ctx", None), ast.Store) and not is_shown(loop, node)
        if (path, node) not in grown
    }


def loops_of_batches(processes: Distribution) -> Iterator[TrainingLoop | BatchLoop]:
    """Yield the loops over shared loaders, and those that take or draw their batches themselves."""
    told: set[ast.AST] = set()
    for loop in all_loops(processes):
        told.add(loop.loop)
        yield loop
    for drawn in processes.data.random.values():
        around = next((item for item in blocks.enclosing(drawn.module, drawn.statement) if _is_loop(item)), None)
        if isinstance(around, (ast.For, ast.While)) and around not in told:
            told.add(around)
            yield BatchLoop(drawn.module, drawn.scope, drawn.body, around, around)


def _is_loop(node: ast.AST) -> bool:
    return isinstance(node, blocks.LOOPS)


# ---- what is made of a batch ---------------------------------------------------------------------------------------


def made_of_batch(processes: Distribution, loop: TrainingLoop | BatchLoop) -> set[str]:
    """The variables that hold what a loop makes of its batch: the batch, the outputs, the loss, a score."""
    found: set[str] = set()
    if isinstance(loop.loop, (ast.For, ast.AsyncFor)):
        found |= (
            blocks.writes_target(loop.loop) - BatchLoop(loop.module, loop.scope, loop.body, loop.loop, loop.loop).head
        )
    inside = set(loop.inner)
    for drawn in processes.data.random.values():
        if drawn.statement in inside:
            found |= blocks.writes(drawn.statement)
    found |= {
        path
        for site in processes.program.backwards
        if site.body is loop.body and site.node in inside and (path := variable(site.loss)) is not None
    }
    meets, given = exchanges_of(processes, loop)
    nodes, variables = averaged_over_ranks(processes)
    of_all = given | {path for body, path in variables if body is loop.body}
    statements = [node for node in loop.inner if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For))]
    statements = [node for node in statements if isinstance(node, ast.For) or not (meets(node) or _holds(node, nodes))]
    grown = [node for node in loop.inner if isinstance(node, ast.Call) and called_name(node) in _GROWING]
    found -= of_all
    while True:
        before = len(found)
        for item in statements:
            source = item.iter if isinstance(item, ast.For) else item.value
            if source is not None and (
                is_made_of(source, found)
                or _takes_next(processes, loop, source)
                or _asks_model(processes, loop, source)
            ):
                found |= (blocks.writes_target(item) if isinstance(item, ast.For) else blocks.writes(item)) - of_all
        for call in grown:
            if any(is_made_of(argument, found) for argument in call.args):
                found |= blocks.writes(call)
        if len(found) == before:
            return found


def _holds(node: ast.AST, parts: set[ast.AST]) -> bool:
    return bool(parts) and not parts.isdisjoint(walk(node))


def exchanges_of(
    processes: Distribution, loop: TrainingLoop | BatchLoop
) -> tuple[Callable[[ast.AST], bool], frozenset[str]]:
    """Whether a node runs an exchange of the script itself, and the variables that the loop gives to one."""
    exchanges = processes.exchanges
    if not exchanges:
        return (lambda node: False), frozenset()
    meets = processes.program.closure(lambda node: node in exchanges)
    calls = [node for node in loop.inner if isinstance(node, ast.Call) and meets(node)]
    given = [value for call in calls for value in (*call.args, *(item.value for item in call.keywords))]
    return meets, frozenset(path for value in given for path in blocks.reads(value))


def _takes_next(processes: Distribution, loop: TrainingLoop | BatchLoop, node: ast.expr) -> bool:
    """``next(batches)``; not that of a loader which each process sees in full, for a look at how the model does."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "next"):
        return False
    shared = {value for use in processes.data.uses for value in use.values}
    taken = {value.ref for value in processes.program.flow.values(node, loop.scope) if value.kind == "batch"}
    return not taken or not shared.isdisjoint(taken)


def _asks_model(processes: Distribution, loop: TrainingLoop | BatchLoop, node: ast.expr) -> bool:
    """``model.latest_losses()``: what a method of the project gives of what the model kept of the batch."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)) or node.args or node.keywords:
        return False
    program = processes.program
    return bool(program.flow.callees(node)) and bool(program.roles.modules(node.func.value, loop.scope))


def is_made_of(node: ast.AST, made: set[str]) -> bool:
    """Whether an expression reads numbers of a batch, and not only its size."""
    stack: list[ast.AST] = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, ast.Attribute) and current.attr in _COUNTS:
            continue
        if isinstance(current, ast.Call) and called_name(current) == "len":
            continue
        if isinstance(current, (ast.Name, ast.Attribute)) and isinstance(current.ctx, ast.Load):
            if blocks.path_of(current) in made:
                return True
        stack += children(current)
    return False


# ---- what is kept of it --------------------------------------------------------------------------------------------


def _averages(node: ast.AST) -> Iterator[str]:
    """Yield the variable of an exponential average: ``mean = 0.9 * mean + 0.1 * loss.item()``."""
    if not (isinstance(node, ast.Assign) and len(node.targets) == 1):
        return
    path = variable(node.targets[0])
    values = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
    for value in values:
        if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub)) and path is not None:
            sides = [path in map(variable, _parts(side)) for side in (value.left, value.right)]
            bare = path in (variable(value.left), variable(value.right))
            if sum(sides) == 1 and not bare:
                yield path


def _extremes(node: ast.AST) -> Iterator[str]:
    """Yield the variable of the largest or smallest number so far: ``worst = max(worst, loss.item())``."""
    if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.Call)):
        return
    path = variable(node.targets[0])
    if called_name(node.value) in _LIMITS and path is not None and path in map(variable, node.value.args):
        yield path


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a product is made of."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        if isinstance(current, (ast.BinOp, ast.UnaryOp)):
            stack += children(current)


def _begins_each_round(loop: TrainingLoop | BatchLoop, path: str, kept: ast.AST) -> bool:
    """Whether a loop gives a variable another value in a round than what is kept of the rounds before.

    Not for the first round, ``if mean is None: mean = loss.item()``, and not a constant under a condition.
    """
    inside = set(loop.inner)
    for node in loop.inner:
        if isinstance(node, (ast.For, ast.AsyncFor)) and path in blocks.writes_target(node):
            return True
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node is kept or node.value is None:
            continue
        if path not in blocks.writes(node) or path in (*added_to(node), *_averages(node), *_extremes(node)):
            continue
        if blocks.touches({path}, blocks.reads(node.value)):
            continue
        around = next((item for item in blocks.enclosing(loop.module, node) if isinstance(item, ast.If)), None)
        if around is None or around not in inside:
            return True
        is_first = path in blocks.reads(around.test) or kept in set(blocks.walk_own(around))
        if not isinstance(node.value, ast.Constant) and not is_first:
            return True
    return False


def _counts_of_batch(loop: TrainingLoop | BatchLoop, node: ast.AST, made: set[str]) -> bool:
    """Whether a number is counted up where the batch says so: ``if overlap > 0.7: hits += 1``."""
    inside = set(loop.inner)
    return any(
        isinstance(item, ast.If) and item in inside and is_made_of(item.test, made)
        for item in blocks.enclosing(loop.module, node)
    )
