"""Gradients that a round looks at in several places: one ``unscale_`` above them all is what torch's scaler takes."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from amp_rules.plain_torch.uses import Use, source_of
from amp_rules.source import blocks


@dataclass(frozen=True)
class Merged:
    """What several calls of ``unscale_`` become.

    Attributes:
        above: the statements above which one stands, each with a call that it is like.
        gone: the calls that are taken out.
    """

    above: dict[ast.stmt, list[Use]]
    gone: frozenset[Use]


def merged_unscales(uses: Iterable[Use], has_scale: Callable[[ast.AST], bool]) -> Merged | None:
    """Put one call above several of the same optimizer in a suite; None where there are none.

    Args:
        uses: the calls of the scaler.
        has_scale: whether running a node scales a loss.
    """
    groups: defaultdict[tuple[ast.AST, str], list[Use]] = defaultdict(list)
    for use in uses:
        if use.path == "scaler.unscale_" and use.call is not None and use.is_statement:
            groups[use.body, source_of(use.module, use.argument)].append(use)
    above: dict[ast.stmt, list[Use]] = {}
    gone: set[Use] = set()
    for group in groups.values():
        first = _common_place(group, has_scale) if len(group) > 1 else None
        if first is not None:
            above.setdefault(first, []).append(group[0])
            gone.update(group)
    return Merged(above, frozenset(gone)) if gone else None


def _common_place(group: list[Use], has_scale: Callable[[ast.AST], bool]) -> ast.stmt | None:
    """The first of the statements of one suite that hold the calls."""
    module = group[0].module
    chains = [[use.statement, *blocks.enclosing(module, use.statement)] for use in group]
    for statement in chains[0]:
        suite = blocks.place(module, statement).suite
        if not all(any(item in suite for item in chain) for chain in chains[1:]):
            continue
        indices = sorted(next(suite.index(item) for item in chain if item in suite) for chain in chains)
        run = suite[indices[0] : indices[-1] + 1]
        read = blocks.reads(group[0].argument)
        if any(map(has_scale, run)) or any(blocks.touches(blocks.writes(item), read) for item in run):
            return None
        if _is_conditional_on(group, run, read):
            return None
        return run[0] if len(set(indices)) > 1 else None
    return None


def _is_conditional_on(group: list[Use], run: tuple[ast.stmt, ...], read: set[str]) -> bool:
    """Whether some of the calls stand in a loop, or under a condition about the optimizer itself."""
    for use in group:
        for parent in blocks.enclosing(use.module, use.statement):
            if isinstance(parent, blocks.LOOPS) and any(parent is item for item in run):
                return True
            if isinstance(parent, ast.If) and blocks.touches(blocks.reads(parent.test), read):
                return True
            if any(parent is item for item in run):
                break
    return False
