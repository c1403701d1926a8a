"""At the levels that compute in half the losses stay near the original's.

The losses of each backward call of the script are a curve of its own (a generator's is not a discriminator's). Both
curves are smoothed by a moving mean over a fifth of the steps, at most 10. Their distance at each place is taken
relative to the original's smoothed loss there, or to the mean size of its losses where that is larger, so that it means
something too for a loss that goes to zero or changes its sign. It must nowhere exceed the tolerance.

Where it does, the original under torch's own autocast in the same type is asked, which no migration had a hand in. The
level holds as well if it is within the tolerance of that run, or if it begins within the tolerance of the original and
nowhere gets farther from it than that run does: a training that amplifies rounding takes every run in half elsewhere.
Where that run leaves the tolerance, it is enough that the level repeats its first 20 losses, over at least 5 steps of
the optimizer. That run may have been given fewer steps; then it is so far that they are held against each other.
It is disproved if that run stays within the tolerance and the level leaves it by more than the original's own losses
scatter, and is more than four times as far; and by a loss that is infinite or NaN where those of the original and of
that run are not, unless the scaler skipped the step. All else is open: farther from the original than plain autocast
where that left it as well, no such run to ask, two runs of the original that are farther apart than the tolerance, and
O3, whose arithmetic loses small updates by design.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks.common import Traces, at, first_rank, lossy_runs, percent, relative, site_numbers
from amp_migrate.verify.checks.reference import reference
from amp_migrate.verify.evidence import Check, Verdict
from amp_migrate.verify.plan import O1_FP16, ORIGINAL, ORIGINAL_AGAIN, Asked
from amp_migrate.verify.traces import Backward, RankTrace, Trace

ID = "band"

_WINDOW, _PARTS = 10, 5
_SAME, _AS_FAR, _UPDATES = 1e-4, 20, 5
"""Losses that are so near, so many, after so many updates: two runs compute the same, whatever becomes of rounding."""
_FARTHER = 4
"""So many times as far as plain autocast is more than another rounding of the same training."""


@dataclass(frozen=True)
class Place:
    """How far two curves are apart at one backward call.

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

    @property
    def unexplained(self) -> float:
        """The part of the distance that scatter does not explain; negative where it explains all."""
        return self.size - self.scatter


@dataclass(frozen=True)
class Deviation:
    """How far a curve is from another one.

    Attributes:
        farthest: where the smoothed curves are farthest apart.
        unexplained: where the part of it that scatter does not explain is the largest.
        single: where single losses are farthest apart.
        start: the largest distance at the beginning of a curve, before a training amplifies rounding.
    """

    farthest: Place
    unexplained: Place
    single: Place
    start: float

    @property
    def size(self) -> float:
        """The largest relative distance of the smoothed curves."""
        return self.farthest.size

    def leaves(self, tolerance: float) -> bool:
        """Whether the distance is somewhere larger than the tolerance and scatter together."""
        return self.unexplained.unexplained > tolerance

    def __str__(self) -> str:
        far, left, single = self.farthest, self.unexplained, self.single
        words = f"by {percent(far.size)}, at step {far.step} ({far.where})"
        if far.window > 1:
            words += f", smoothed over {plural(far.window, 'step')}"
        if percent(single.size) != percent(far.size) and single.size > far.size:
            words += f"; single losses by up to {percent(single.size)}, at step {single.step}"
        if left.step != far.step and left.unexplained > 0:
            words += (
                f". What their scatter does not explain is largest at step {left.step}, {percent(left.unexplained)}"
            )
        return words


@dataclass(frozen=True)
class Near:
    """What a run in half is compared with.

    Attributes:
        steps: the losses that it should be near to.
        name: of the run that they are of.
        plain: the original under torch's own autocast in one process; None if there is none to ask.
        original: the original in one process, which that is compared with.
        tolerance: half the width of the band.
        own: how far two runs of the original are apart.
        processes: how many it has; only one reads in each step what plain autocast reads.
    """

    steps: Sequence[Backward]
    name: str
    plain: RankTrace | None
    original: RankTrace
    tolerance: float
    own: float
    processes: int = 1


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare each level with the original; of float16 besides bfloat16 only what is known."""
    original = first_rank(traces, ORIGINAL)
    if original is None:
        return
    for name, trace in lossy_runs(traces):
        found = judge(traces, asked, name, trace, original)
        # Where the script does not train in it under torch's own autocast either, this type is none for it.
        if name != O1_FP16 or "fp16" in asked.half_types or found.verdict != "unproved":
            yield found


def judge(traces: Traces, asked: Asked, name: str, trace: Trace, original: RankTrace) -> Check:
    """Whether one run in half stays near the original."""
    plain = reference(traces, trace)
    near = Near(original.backwards, "the original", plain, original, asked.tolerance, own_distance(traces))
    verdict, message = stays_near(near, trace.ranks[0].backwards, trace.ranks[0].skipped)
    if verdict == "disproved" and trace.level == "O3":
        verdict, message = "unproved", f"{message} O3 has no weights in float32, and small updates are lost in it."
    title = f"{name} stays near the original, as far as half precision allows"
    return Check(f"{_slug(name)}-{ID}", title, verdict, message)


def _slug(name: str) -> str:
    return name.lower().replace(", ", "-")


def own_distance(traces: Traces) -> float:
    """How far two runs of the original are apart; 0 where it was not run again."""
    original, again = first_rank(traces, ORIGINAL), first_rank(traces, ORIGINAL_AGAIN)
    if original is None or again is None:
        return 0.0
    found = deviation(original.backwards, again.backwards)
    return 0.0 if found is None else found.size


def stays_near(near: Near, steps: Sequence[Backward], skipped: int) -> tuple[Verdict, str]:
    """Whether losses in half stay as near as they should, and the numbers that this rests on.

    Args:
        near: what they are compared with.
        steps: the backward calls of the run in half.
        skipped: how many steps its scaler skipped.
    """
    more = f" The scaler skipped {plural(skipped, 'step')}." if skipped else ""
    if len(broken := _broken(near.steps, steps)) > skipped:
        return _not_finite(near, broken[0], steps, more)
    found = deviation(near.steps, steps)
    if found is None:
        return "unproved", "The original's losses are not finite, so there is nothing to compare."
    message = f"The losses are farthest from {near.name}'s, {found}.{more}"
    if found.size <= near.tolerance:
        return "proved", message
    message += f" {percent(near.tolerance)} are allowed (--tolerance)."
    if near.own > near.tolerance:
        return "unproved", f"{message} But two runs of the original are {percent(near.own)} apart themselves."
    verdict, reason = _beside_plain(near, steps, found)
    return verdict, f"{message} {reason}"


def _beside_plain(near: Near, steps: Sequence[Backward], found: Deviation) -> tuple[Verdict, str]:
    """The judgement of a run that left the tolerance, by what plain autocast does to the original."""
    plain = near.plain
    if plain is None:
        return "unproved", "The original failed under torch's own autocast, so half precision may be the cause."
    if near.processes == 1 and len(plain.backwards) < len(steps):
        return _beside_shorter_plain(near, plain, steps)
    # After as many samples, which one process takes so many times as many steps for.
    count = len(steps) * near.processes
    own = deviation(near.original.backwards[:count], plain.backwards[:count])
    if own is None or _broken(near.original.backwards, plain.backwards[:count]):
        return (
            "unproved",
            "Under torch's own autocast the original's losses are not finite, so half precision may be the cause.",
        )
    words = f"torch's own autocast moves the original by {percent(own.size)}"
    beside = deviation(plain.backwards, steps) if near.processes == 1 else None
    if beside is not None and beside.size <= near.tolerance:
        return (
            "proved",
            f"But {words}, and from that it is no more than {percent(beside.size)}: half precision is the cause.",
        )
    if found.size <= own.size and found.start <= near.tolerance:
        return "proved", f"But {words}, which is no less: this training amplifies rounding."
    if own.size > near.tolerance and near.processes == 1 and (alike := _alike(plain, steps)):
        return "proved", f"But {words}, and the first {alike} losses are the same: from there rounding is amplified."
    if own.size > near.tolerance:
        return "unproved", f"And {words}: half precision alone changes this training, so this cannot be decided."
    scatter = percent(found.unexplained.scatter)
    if not found.leaves(near.tolerance):
        return "unproved", f"The original's own losses scatter by {scatter}, so more --steps are needed to decide."
    if found.unexplained.size <= _FARTHER * own.size:
        return "unproved", f"And {words}, which is not much less, so more --steps are needed to decide."
    hint = "Look with amp-lint for operations that are not exact enough in half, and keep them in float32."
    return "disproved", f"{scatter} are scatter, and {words}. {hint}"


def _alike(plain: RankTrace, steps: Sequence[Backward]) -> int:
    """How many losses are the same from the start, but for the order of additions; 0 if they are too few to tell."""
    pairs = zip(plain.backwards, steps, strict=False)
    count = sum(1 for _ in itertools.takewhile(lambda pair: relative(pair[0].loss, pair[1].loss) <= _SAME, pairs))
    updates = sum(update.after < count for update in plain.updates)
    return count if count >= _AS_FAR and updates >= _UPDATES else 0


def _beside_shorter_plain(near: Near, plain: RankTrace, steps: Sequence[Backward]) -> tuple[Verdict, str]:
    """The judgement where plain autocast was given fewer steps: as far as it went."""
    count = len(plain.backwards)
    found = deviation(near.steps, steps[:count])
    far = f"torch's own autocast was asked for {plural(count, 'step')} only"
    if found is None or found.size <= near.tolerance:
        return "unproved", f"But {far}, so --full is needed to decide."
    verdict, reason = _beside_plain(near, steps[:count], found)
    return verdict, f"In the first {plural(count, 'step')} it is {percent(found.size)}, and {far}. {reason}"


def _not_finite(near: Near, first: tuple[int, Backward], steps: Sequence[Backward], more: str) -> tuple[Verdict, str]:
    number, step = first
    message = f"The loss of step {number + 1} ({at(step)}) is {step.loss}, which {near.name}'s is not.{more}"
    plain = near.plain
    if plain is None:
        return "unproved", f"{message} The original failed under torch's own autocast."
    broken = _broken(near.original.backwards, plain.backwards[: len(steps)])
    if len(broken) > plain.skipped or len(plain.backwards) <= number:
        return "unproved", f"{message} Under torch's own autocast the original's losses are not known to be finite."
    hint = "Look for an operation that leaves the range of half there, with amp-lint, and keep it in float32."
    return "disproved", f"{message} {hint}"


def _broken(right: Sequence[Backward], other: Sequence[Backward]) -> list[tuple[int, Backward]]:
    """The steps whose loss is not finite, though that of the other run is."""
    return [
        (number, step)
        for number, step in enumerate(other)
        if not math.isfinite(step.loss) and (number >= len(right) or math.isfinite(right[number].loss))
    ]


def deviation(right: Sequence[Backward], other: Sequence[Backward]) -> Deviation | None:
    """Compare the losses of two runs as far as both got, each backward call of the script by itself.

    Returns:
        Where they are farthest apart; None if no two finite losses can be compared.
    """
    count = min(len(right), len(other))
    curves = list(_curves(right[:count], other[:count]))
    places = [_smoothed_places(steps, pairs) for steps, pairs in curves if pairs]
    if not places:
        return None
    every = [place for curve in places for place in curve]
    singles = [place for steps, pairs in curves if pairs for place in _places(steps, pairs, 1)]
    return Deviation(
        max(every, key=_size),
        max(every, key=lambda place: (place.unexplained, place.size)),
        max(singles, key=_size),
        max(curve[0].size for curve in places),
    )


def _size(place: Place) -> float:
    return place.size


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


def _smoothed_places(steps: list[tuple[int, Backward]], pairs: list[tuple[float, float]]) -> list[Place]:
    return _places(steps, pairs, max(1, min(_WINDOW, len(pairs) // _PARTS)))


def _places(steps: list[tuple[int, Backward]], pairs: list[tuple[float, float]], window: int) -> list[Place]:
    """How far the two losses of one backward call are apart at each of its steps, smoothed over a window."""
    right, other = [first for first, _ in pairs], [second for _, second in pairs]
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
        places.append(Place(apart, around, number, window, at(step)))
    return places


def _smoothed(losses: Sequence[float], window: int) -> list[float]:
    return [_mean(losses[start : start + window]) for start in range(len(losses) - window + 1)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
