"""Numbers of several processes beside those of one that they need not equal, but have to be of one size with."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from amp_migrate.verify.evidence import Verdict
from amp_migrate.verify.traces import Backward, Update

_SOME = 10
_AVERAGE = 0.65, 1.3
"""Between what two processes make of gradients that are divided, or summed; larger batches have smaller gradients."""


def on_average(
    losses: Sequence[tuple[Backward, Backward]], updates: Sequence[tuple[Update, Update]], why: str
) -> tuple[Verdict, str]:
    """What can be said where numbers need not be equal: that the first losses and gradients are of one size."""
    first, steps = losses[: max(_SOME, len(losses) // 5)], updates[:_SOME]
    losses_ratio = ratio([step.loss for step, _ in first], [other.loss for _, other in first])
    norms = ratio([update.norm for update, _ in steps], [other.norm for _, other in steps])
    reason = f"Equal losses cannot be expected: {why}."
    if _AVERAGE[0] <= losses_ratio <= _AVERAGE[1] and _AVERAGE[0] <= norms <= _AVERAGE[1]:
        message = (
            f"{reason} On average the first losses are {losses_ratio:.2f} times those of one process, and the first "
            f"gradients {norms:.2f} times: neither summed nor divided."
        )
        return "proved", message
    return "unproved", reason


def ratio(numbers: Sequence[float], others: Sequence[float]) -> float:
    """The ratio of the means; 0 where it means nothing, because signs differ or numbers are not finite."""
    if not numbers or not others or not all(map(math.isfinite, (*numbers, *others))):
        return 0.0
    first, second = statistics.fmean(numbers), statistics.fmean(others)
    return first / second if first * second > 0 else 0.0


def made_anew(updates: Sequence[Update]) -> int | None:
    """After how many backward calls a script trains something else, as for another fold; None if it never does.

    What it makes then has other first weights, for the random numbers before were drawn in another order.
    """
    last = {update.optimizer: number for number, update in enumerate(updates)}
    first = {update.optimizer: number for number, update in reversed(list(enumerate(updates)))}
    for number, (before, update) in enumerate(pairwise(updates)):
        # All that stepped before never steps again.
        if first[update.optimizer] == number + 1 and all(
            last[known] <= number for known in first if first[known] <= number
        ):
            return before.after
    return None
