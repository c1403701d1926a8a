"""Numbers of single batches that a training loop shows: the loss of the last batch, printed every so many steps."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.clock_times import times
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.kept_numbers import loops_of_batches, made_of_batch
from amp_rules.plan.numbers_of_batches import comes_of_batch, is_number
from amp_rules.plan.rank_numbers import OF_ONE_BATCH, Told, of_the_share
from amp_rules.plan.training_loops import TrainingLoop, variable
from amp_rules.plan.ways_to_show import WaysToShow
from amp_rules.ranks.origins import Kind
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import called_name, is_text

_MOST_NAMED = 3
"""Numbers of one loop that are named: where one is of a process, the reader knows it of those beside it."""

_GIVES_ONE = frozenset({"mean", "sum"})
"""Methods that make one number of a tensor."""


def shown_of_batches(processes: Distribution, told: Iterable[Told]) -> Iterator[Told]:
    """Yield what loops show of single batches, where nothing is told of a loop already."""
    beside = {item for one in told for item in blocks.enclosing(one.site.module, one.site.statement)}
    beside |= {one.site.statement for one in told}
    loops = [loop for loop in loops_of_batches(processes) if loop.loop not in beside]
    ways = WaysToShow(processes) if loops else None
    for loop in loops:
        assert ways is not None
        left_out = times(processes.program, loop)
        named: list[str] = []
        for path, node in _computed(processes, loop).items():
            # A prediction that is only a part of a loss is not shown by showing that.
            shown = ways.of_loop(loop, loop.inner, path, beside=named) if len(named) < _MOST_NAMED else None
            if path not in left_out and shown is not None:
                named.append(path)
                yield Told(Site(loop.module, loop.scope, loop.body, node), path, *OF_ONE_BATCH)


def _computed(processes: Distribution, loop: TrainingLoop | BatchLoop) -> dict[str, ast.stmt]:
    """The numbers that a loop computes of its batch, with where it does: losses before others."""
    made = made_of_batch(processes, loop)
    losses = {variable(site.loss) for site in processes.program.backwards if site.body is loop.body}
    found: dict[str, ast.stmt] = {}
    for node in of_the_share(processes, loop):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None or _names_file(node.value):
            continue
        for path in sorted(blocks.writes(node) & made):
            value = _value_of(node, path)
            is_computed = isinstance(value, (ast.Call, ast.BinOp, ast.IfExp)) or _is_turned(processes, value)
            # A model that computes its loss itself gives it beside other things: ``loss = outputs.loss``.
            is_given = path in losses and isinstance(value, (ast.Attribute, ast.Subscript))
            if is_given or (is_computed and (path in losses or _is_one_number(processes, loop, value, path))):
                found.setdefault(path, node)
    return dict(sorted(found.items(), key=lambda item: (item[0] not in losses, item[1].lineno)))


def _is_turned(processes: Distribution, value: ast.expr) -> bool:
    """Whether a number of the batch gets another sign; a generator's loss, ``-critic(fake).mean()``, is of noise."""
    return isinstance(value, ast.UnaryOp) and any(
        origin.kind is Kind.BATCH for origin in processes.ranks.origins(value.operand)
    )


def _value_of(node: ast.Assign | ast.AnnAssign, path: str) -> ast.expr:
    """What a variable is given, alone or beside others: ``loss, penalty = criterion(...), model.penalty()``."""
    assert node.value is not None
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    pairs = [pair for target in targets for pair in blocks.unpacked(target, node.value)]
    return next((value for item, value in pairs if blocks.path_of(item) == path), node.value)


def _names_file(value: ast.expr) -> bool:
    """``os.path.join(folder, f"{loss.item():.4f}.pt")``, ``folder / f"{loss.item():.4f}.pt"``."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
        return is_text(value.right)
    return isinstance(value, ast.Call) and (blocks.path_of(value.func) or "").endswith(("path.join", "Path"))


def _is_one_number(processes: Distribution, loop: TrainingLoop | BatchLoop, value: ast.expr, path: str) -> bool:
    """Whether a variable gets a number, there or from a function of the step: no outputs, and not the batch."""
    if is_number(value) or called_name(value) in _GIVES_ONE:
        return True
    read = (node for node in loop.inner if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    name = next((node for node in read if node.id == path), None)
    return name is not None and comes_of_batch(processes, name, loop)
