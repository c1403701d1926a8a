"""Loops that come round once an epoch."""

from __future__ import annotations

import ast
from collections.abc import Callable

from amp_rules.source.index import FileIndex, Function, Loop
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.idioms import NAMED_EPOCH, NAMED_EVALUATION

MAX_CALLERS = 3
"""Functions between the loops over epochs and batches: ``main``, ``fit``, ``train_epoch``. Beyond, nothing is said."""


def counts_epochs(loop: Loop) -> bool:
    """Whether a loop says that it counts epochs."""
    if isinstance(loop, ast.While):
        return bool(NAMED_EPOCH.search(ast.unparse(loop.test)))
    return bool(NAMED_EPOCH.search(ast.unparse(loop.target)) or NAMED_EPOCH.search(ast.unparse(loop.iter)))


def is_counted(loop: Loop) -> bool:
    """Whether a loop comes round for a number of times, or until something is reached: ``while step < last``."""
    return isinstance(loop, ast.While) or (
        isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) in ("range", "trange", "count")
    )


def trains(index: FileIndex, place: ast.AST, depth: int = MAX_CALLERS) -> bool:
    """Whether a backward pass is run somewhere, or by the functions of this file that are called there."""
    for item in walk(place):
        if isinstance(item, ast.Call):
            if last_name(item.func) == "backward":
                return True
            callees = index.callees(item) if depth else []
            if any(trains(index, function, depth - 1) for function in callees):
                return True
    return False


def loops_over(
    index: FileIndex, use: ast.AST, is_wanted: Callable[[Loop], bool], seen: frozenset[ast.AST] = frozenset()
) -> list[tuple[Loop, ast.AST]]:
    """The epoch loops around a place, in its function or in those that call it; with the node that stands in each."""
    here = [loop for loop in index.loops_around(use) if is_wanted(loop)]
    if here:
        return [(here[-1], use)]
    function = index.scope(use)
    if not isinstance(function, Function) or function in seen or len(seen) > MAX_CALLERS:
        return []
    if NAMED_EVALUATION.search(function.name):
        return []
    return [
        found for call in index.callers(function) for found in loops_over(index, call, is_wanted, seen | {function})
    ]
