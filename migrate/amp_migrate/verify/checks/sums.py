"""Losses that are sums over samples, and optimizers whose steps do not depend on how large the gradients are.

Averaged over N processes, the gradients of a sum are 1/N of those of one process with the whole batch. Adam and its kin
divide by the size of the gradients, and train as if nothing were: their first steps move the weights as far as in one
process, and N times the losses are the losses there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from amp_migrate.verify.checks.band import deviation
from amp_migrate.verify.checks.common import percent, relative
from amp_migrate.verify.traces import Backward, Update

_AS_FAR = 0.15
"""How near two steps are in length that only agree on average; one by the gradients would be 1/N as long."""


def trains_alike(
    losses: Sequence[tuple[Backward, Backward]],
    updates: Sequence[tuple[Update, Update]],
    processes: int,
    allowed: tuple[float, bool],
) -> str:
    """How near the processes train to one, as a sentence; empty where they do not, or that is not known.

    Args:
        losses: the mean losses of the processes beside those of one, which are N times as large.
        updates: the steps of their optimizers beside each other.
        processes: N.
        allowed: how far the losses may be apart; and whether that is besides the scatter of the losses.
    """
    steps = [(one.moved, other.moved) for one, other in updates if one.moved and other.moved]
    if not steps or any(relative(mine, one) > _AS_FAR for mine, one in steps):
        return ""
    scaled = [replace(step, loss=step.loss * processes) for step, _ in losses]
    found = deviation([other for _, other in losses], scaled)
    tolerance, besides_scatter = allowed
    if found is None or (found.leaves(tolerance) if besides_scatter else found.size > tolerance):
        return ""
    return (
        "The optimizer's steps do not depend on the size of the gradients: the first ones move the weights as far as "
        f"in one process, and {processes} times the losses stay within {percent(found.size)} of its own."
    )
