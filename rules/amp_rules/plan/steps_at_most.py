"""Epochs of some first batches, ``for x, y in itertools.islice(loader, 12)``: as many steps as in one process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.counts_of_loaders import of_loader
from amp_rules.plan.distribution import Distribution
from amp_rules.roles.loaders import is_loader
from amp_rules.roles.program import Program
from amp_rules.source.syntax import is_none, walk

_SLICE = "itertools.islice"
_CYCLE = frozenset({"itertools.cycle"})


def slices(program: Program, processes: Distribution, loop: BatchLoop) -> Iterator[ast.Call]:
    """Yield what takes so many batches of what the loop goes over, where the number comes of no loader's length."""
    over = loop.loop.iter if isinstance(loop.loop, (ast.For, ast.AsyncFor)) else None
    for node in walk(over) if over is not None else ():
        if not (isinstance(node, ast.Call) and _SLICE in program.callee_names(node, loop.scope)):
            continue
        end = node.args[1] if len(node.args) == 2 else node.args[2] if len(node.args) > 2 else None
        if end is not None and not is_none(end) and not of_loader(program, processes, end, loop.scope):
            yield node


def of_share(program: Program, loop: BatchLoop, call: ast.Call) -> bool:
    """Whether a slice is one of the loader itself, which ends with the share of the process: of no endless iterator."""
    if program.calls_to(_CYCLE):
        return False
    return any(map(is_loader, program.flow.values(call.args[0], loop.scope)))
