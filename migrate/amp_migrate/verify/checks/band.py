"""At the levels that compute in half the losses stay near the original's.

The losses of each backward call of the script are a curve of its own (a generator's is not a discriminator's). Both
curves are smoothed by a moving mean over a fifth of the steps, at most 10. Their distance at each place is taken
relative to the original's smoothed loss there, or to the mean size of its losses where that is larger, so that it means
something too for a loss that goes to zero or changes its sign. It must nowhere exceed the tolerance.

Where it does, but by no more than the original's own losses scatter from step to step, nothing is said: two trainings
of which one was nudged by a rounding error differ as much. What is beyond both is disproved, and so is a loss that is
infinite or NaN, unless the scaler skipped that step or the original has the same. Nothing is disproved either where
two runs of the original are farther apart than the tolerance, as of a script that seeds from the time.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks.common import Traces, at, first_rank, lossy_runs, percent, site_numbers
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import ORIGINAL, ORIGINAL_AGAIN, Asked
from amp_migrate.verify.traces import Backward, RankTrace

ID = "band"

_WINDOW, _PARTS = 10, 5


@dataclass(frozen=True)
class Deviation:
    """How far a curve is from another one, where it is farthest.

    Attributes:
        size: the relative distance of the smoothed curves.
        scatter: by how much the first curve scatters around its smoothed self, in the same measure.
        step: which backward call that is, from 1.
        window: over how many losses the curves are smoothed.
        where: the backward call.
    """

    size: float
    scatter: float
    step: int
    window: int
    where: str


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare each level with the original."""
    original = first_rank(traces, ORIGINAL)
    if original is None:
        return
    for level, trace in lossy_runs(traces):
        found = _judge(level, original, trace.ranks[0], asked.tolerance)
        if found.verdict == "disproved" and (own := own_distance(traces)) > asked.tolerance:
            message = (
                f"The losses are not near the original's, but two runs of the original are {percent(own)} apart "
                "themselves. Seed everything that it draws from, and verify again."
            )
            found = replace(found, verdict="unproved", message=message)
        yield found


def own_distance(traces: Traces) -> float:
    """How far two runs of the original are apart; 0 where it was not run again, because nothing asked for it."""
    original, again = first_rank(traces, ORIGINAL), first_rank(traces, ORIGINAL_AGAIN)
    if original is None or again is None:
        return 0.0
    found = deviation(original.backwards, again.backwards)
    return 0.0 if found is None else found.size


def _judge(level: str, original: RankTrace, migrated: RankTrace, tolerance: float) -> Check:
    id_, title = f"{level.lower()}-{ID}", f"{level} stays within {percent(tolerance)} of the original's losses"
    skipped = f" The scaler skipped {plural(migrated.skipped, 'step')}." if migrated.skipped else ""
    broken = [
        (number, step)
        for number, step in enumerate(migrated.backwards)
        if not math.isfinite(step.loss)
        and (number >= len(original.backwards) or math.isfinite(original.backwards[number].loss))
    ]
    if len(broken) > migrated.skipped:
        number, step = broken[0]
        message = (
            f"The loss of step {number + 1} ({at(step)}) is {step.loss}, which the original's is not.{skipped} Look "
            "for an operation that leaves the range of half there, with amp-lint, and keep it in float32."
        )
        return Check(id_, title, "disproved", message)
    found = deviation(original.backwards, migrated.backwards)
    if found is None:
        return Check(id_, title, "unproved", "The original's losses are not finite, so there is nothing to compare.")
    over = f"at step {found.step} ({found.where}), smoothed over {plural(found.window, 'step')}"
    message = f"The losses are farthest from the original's, by {percent(found.size)}, {over}.{skipped}"
    if found.size <= tolerance:
        return Check(id_, title, "proved", message)
    if found.size <= tolerance + found.scatter:
        message += f" The original's own losses scatter by {percent(found.scatter)}, so more --steps have to tell."
        return Check(id_, title, "unproved", message)
    message += f" {percent(tolerance)} are allowed (--tolerance), and {percent(found.scatter)} are scatter."
    message += " Look with amp-lint for operations that are not exact enough in half, and keep them in float32."
    return Check(id_, title, "disproved", message)


def deviation(right: Sequence[Backward], other: Sequence[Backward]) -> Deviation | None:
    """Compare the losses of two runs as far as both got, each backward call of the script by itself.

    Returns:
        Where they are farthest apart, measured by how much of it scatter does not explain; None if no two finite
        losses can be compared.
    """
    curves = list(_curves(right, other))
    found = [_of_curve(steps, pairs) for steps, pairs in curves if pairs]
    return max(found, key=lambda item: (item.size - item.scatter, item.size), default=None)


def _curves(
    right: Sequence[Backward], other: Sequence[Backward]
) -> Iterator[tuple[list[tuple[int, Backward]], list[tuple[float, float]]]]:
    """For each backward call of the script its steps and both losses, without those that are not finite."""
    numbers, others = site_numbers(right), site_numbers(other)
    if set(numbers) != set(others):  # such as one that only ran in one of them: one curve for all, call by call
        numbers, others = [0] * len(right), [0] * len(other)
    mine: defaultdict[int, list[tuple[int, Backward]]] = defaultdict(list)
    theirs: defaultdict[int, list[Backward]] = defaultdict(list)
    for index, (site, step) in enumerate(zip(numbers, right, strict=True)):
        mine[site].append((index + 1, step))
    for site, step in zip(others, other, strict=True):
        theirs[site].append(step)
    for site, steps in mine.items():
        both = [
            (number, step, found)
            for (number, step), found in zip(steps, theirs[site], strict=False)
            if math.isfinite(step.loss) and math.isfinite(found.loss)
        ]
        yield [(number, found) for number, _, found in both], [(step.loss, found.loss) for _, step, found in both]


def _of_curve(steps: list[tuple[int, Backward]], pairs: list[tuple[float, float]]) -> Deviation:
    right, other = [first for first, _ in pairs], [second for _, second in pairs]
    window = max(1, min(_WINDOW, len(pairs) // _PARTS))
    typical = _mean([abs(loss) for loss in right])
    jumps = [(after - before) ** 2 for before, after in itertools.pairwise(right)]
    # Of the mean over a window, by the jumps from one loss to the next, which a trend hardly changes; of two curves.
    scatter = math.sqrt(_mean(jumps) / 2) * math.sqrt(2 / window) if jumps else 0.0
    places = []
    for index, (smooth, found) in enumerate(zip(_smoothed(right, window), _smoothed(other, window), strict=True)):
        size = max(abs(smooth), typical)
        apart = abs(found - smooth) / size if size else (0.0 if found == smooth else math.inf)
        number, step = steps[index + window // 2]
        around = scatter / size if size else 0.0
        places.append(Deviation(apart, around, number, window, at(step)))
    return max(places, key=lambda item: (item.size - item.scatter, item.size))


def _smoothed(losses: Sequence[float], window: int) -> list[float]:
    return [_mean(losses[start : start + window]) for start in range(len(losses) - window + 1)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
