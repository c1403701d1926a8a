"""The first place where two runs that should be the same are not."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks.common import at, pair, relative
from amp_migrate.verify.traces import Backward, RankTrace, Update

Kind = Literal["loss", "updates", "norm", "steps", "parameters"]


@dataclass(frozen=True)
class Difference:
    """What differs first.

    Attributes:
        kind: the loss of a step; the number or order of the updates after it; the norm of the gradients that one of
            them saw; the number of steps; the parameters at the end.
        step: after how many backward calls, or in which, from 1.
        where: the backward call.
        expected: the number of the run that is right.
        found: that of the other.
        relative: how far they are apart; infinite where it is no question of size.
        words: all of that as a sentence without its full stop.
    """

    kind: Kind
    step: int
    where: str
    expected: float
    found: float
    relative: float
    words: str

    @property
    def ratio(self) -> float:
        """Found over expected; 0 where there is none."""
        if not self.expected or not math.isfinite(self.expected) or not math.isfinite(self.found):
            return 0.0
        return self.found / self.expected


def first_difference(right: RankTrace, other: RankTrace, name: str = "the original") -> Difference | None:
    """Compare two runs bit for bit, in the order in which things happened; None if they are the same.

    Args:
        right: the run that gives the numbers.
        other: the run that has to repeat them.
        name: what the first one is called.
    """
    updates, others = _by_step(right.updates), _by_step(other.updates)
    for number in range(min(len(right.backwards), len(other.backwards)) + 1):
        found = _updates(updates[number], others[number], _step(right, number), _step(other, number), number, name)
        if found is None and number < min(len(right.backwards), len(other.backwards)):
            found = _loss(right.backwards[number], other.backwards[number], number + 1, name)
        if found is not None:
            return found
    ends = len(right.backwards), len(other.backwards)
    if ends[0] != ends[1]:
        words = f"there are {plural(ends[1], 'backward call')}, in {name} {ends[0]}"
        return Difference("steps", min(ends) + 1, at(_step(other, min(ends))), *ends, math.inf, words)
    if right.parameters != other.parameters:
        where = at(_step(right, ends[0]), _step(other, ends[0]))
        words = f"all losses and gradients are those of {name}, the parameters at the end are not"
        return Difference("parameters", ends[0], where, 0.0, 0.0, math.inf, words)
    return None


def _step(rank: RankTrace, number: int) -> Backward:
    """The backward call before which ``number - 1`` others were; the first one for those before it."""
    return rank.backwards[max(0, min(number, len(rank.backwards)) - 1)]


def _by_step(updates: Sequence[Update]) -> defaultdict[int, list[tuple[int, float]]]:
    """The updates after each number of backward calls; optimizers are numbered in the order in which they step."""
    numbers: dict[int, int] = {}
    result: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for update in updates:
        result[update.after].append((numbers.setdefault(update.optimizer, len(numbers)), update.norm))
    return result


def _loss(right: Backward, other: Backward, number: int, name: str) -> Difference | None:
    if right.loss.hex() == other.loss.hex():
        return None
    where = at(right, other)
    expected, found = pair(right.loss, other.loss)
    words = f"the loss of step {number} ({where}) is {found}, in {name} {expected}"
    apart = relative(right.loss, other.loss)
    return Difference("loss", number, where, right.loss, other.loss, apart, words)


def _updates(
    right: list[tuple[int, float]],
    other: list[tuple[int, float]],
    right_step: Backward,
    other_step: Backward,
    number: int,
    name: str,
) -> Difference | None:
    where = at(right_step, other_step)
    after = f"after step {number} ({where})" if number else "before the first backward call"
    if len(right) != len(other):
        words = f"{after} optimizers step {_times(len(other))}, in {name} {_times(len(right))}"
        return Difference("updates", number, where, len(right), len(other), math.inf, words)
    if [optimizer for optimizer, _ in right] != [optimizer for optimizer, _ in other]:
        words = f"{after} the optimizers step in another order than in {name}"
        return Difference("updates", number, where, 0.0, 0.0, math.inf, words)
    for (_, expected), (_, found) in zip(right, other, strict=True):
        if expected.hex() != found.hex():
            shown = pair(expected, found)
            words = f"the gradients of the optimizer's step {after} have the norm {shown[1]}, in {name} {shown[0]}"
            return Difference("norm", number, where, expected, found, relative(expected, found), words)
    return None


def _times(count: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(count, f"{count} times")
