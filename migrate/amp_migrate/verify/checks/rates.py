"""The learning rate follows the original's over the samples seen.

N processes see N times as many samples in a step, so they make fewer steps, and a schedule has to be as far after as
many samples. At each update of each optimizer the rate is held against those that the original has between the step
before and the step after in the same place of the same pass over the data, give or take 2 % of its highest rate.

A rate that is the original's times a constant was scaled with the number of processes, which changes the training. One
that is the original's at the same *step* counts steps, so that the schedule takes N times the samples: that may be
meant, and is not proved unless the script makes as many steps in N processes as in one. Where the rate follows a
metric, runs may differ, and only the ranks have to agree; but a metric that is given every so many steps comes after N
times the samples, too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks.common import Traces, at, first_rank, keeps_its_own, relative, together
from amp_migrate.verify.checks.loaders import epochs, training_loaders
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O0_TOGETHER, ORIGINAL, Asked
from amp_migrate.verify.traces import RankTrace, Update

ID = "rates"
TITLE = "The learning rate follows the original's over the samples seen"

_ALLOWED = 0.02
_SAME = 1e-6
_AROUND = 1.5
"""So many steps of N processes a schedule may be ahead or behind: passes end with fewer samples."""


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the rates of the processes with the original's, optimizer by optimizer."""
    ranks, original = together(traces), first_rank(traces, ORIGINAL)
    if not ranks or original is None or keeps_its_own(traces, asked):
        return
    mine, one = _curves(original, 1), _curves(ranks[0], len(ranks))
    pairs = [(mine[number], one[number]) for number in mine if number in one]
    if not pairs or all(rate is None for curve, _ in pairs for rate in curve.rates):
        return
    follows_metric = bool(original.metrics)
    as_many = _as_many_steps(traces, original, ranks[0])
    for right, other in pairs:
        found = _compare(right, other)
        if found is None:
            continue
        words = found.words(original, ranks[0], len(ranks))
        if found.kind == "step" and as_many:
            continue
        if follows_metric and found.kind != "scaled":
            # Another training has another metric: that it is the same on all ranks is a check of its own.
            continue
        yield Check(ID, TITLE, "disproved" if found.kind == "scaled" else "unproved", words)
        return
    if not as_many and (words := _by_steps(original, ranks[0], len(ranks))):
        yield Check(ID, TITLE, "unproved", words)
        return
    count = sum(len(other.rates) for _, other in pairs)
    changing = any(len(set(right.rates)) > 1 for right, _ in pairs)
    over = plural(count, "optimizer step")
    if not changing:
        message = f"It is constant over {over}, as in the original."
    elif follows_metric:
        message = f"It follows a metric over {over}, which belongs to another training; the rate itself was not scaled."
    else:
        message = f"Over {over} it is the original's in the same place of the data."
    yield Check(ID, TITLE, "proved", message)


def _by_steps(original: RankTrace, rank: RankTrace, processes: int) -> str:
    """Whether a schedule is given its metric after as many steps in several processes as in one, as a sentence."""
    gaps = [{two - one for (one, _), (two, _) in pairwise(found.metrics)} for found in (original, rank)]
    loaders = [loader for loader in training_loaders(original) if loader in training_loaders(rank)]
    lengths = [[len(part) for part in epochs(found, loaders[0])][:1] for found in (original, rank) if loaders]
    if len(gaps[0]) != 1 or gaps[0] != gaps[1] or not loaders or lengths[0] == lengths[1]:
        return ""
    where = f" at {rank.metric_sites[0]}" if any(rank.metric_sites[:1]) else ""
    return (
        f"The schedule{where} is given a metric after every {plural(gaps[0].pop(), 'backward call')}, which are "
        f"{processes} times the samples in {processes} processes: it waits {processes} times as long before it changes "
        "the rate. Count samples or passes over the data."
    )


def _as_many_steps(traces: Traces, original: RankTrace, rank: RankTrace) -> bool:
    """Whether the script fixes the number of steps, so that a schedule over steps ends with the training."""
    ended = all(traces[name].status == "ended" for name in (ORIGINAL, O0_TOGETHER))
    return ended and len(original.backwards) == len(rank.backwards)


@dataclass(frozen=True)
class _Curve:
    """The learning rate of one optimizer at each of its updates.

    Attributes:
        places: where in the data each update is: passes, and the share of the present one.
        rates: of all groups of parameters together; None where an optimizer has none.
        updates: the updates themselves.
        step: how much of a pass one step is.
    """

    places: Sequence[float]
    rates: Sequence[float | None]
    updates: Sequence[Update]
    step: float


@dataclass(frozen=True)
class _Found:
    """The first rate that is not the original's.

    Attributes:
        kind: ``"scaled"`` by a constant, the same at the same ``"step"``, or ``"other"``.
        update: where it is.
        rate: what it is.
        expected: what the original has there.
    """

    kind: str
    update: Update
    rate: float
    expected: float

    def words(self, original: RankTrace, rank: RankTrace, processes: int) -> str:
        """The finding as sentences."""
        where = at(original.backwards[0], rank.backwards[max(0, self.update.after - 1)])
        first = (
            f"After {plural(self.update.after, 'backward call')} ({where}) the learning rate is {self.rate:g}, in the "
            f"original after as many samples {self.expected:g}."
        )
        if self.kind == "scaled":
            by = self.rate / self.expected
            by_n = "the number of processes" if relative(by, processes) < _SAME else f"{by:g}"
            return f"{first} It is multiplied by {by_n} throughout, so {processes} processes train otherwise."
        if self.kind == "step":
            return (
                f"{first} The schedule counts steps, of which {processes} processes make fewer: it takes {processes} "
                "times as many samples. Divide its lengths by amp.world_size(), unless steps are meant."
            )
        return f"{first} Look at what the schedule's lengths are made of: len(loader) is a rank's own share of it."


def _compare(right: _Curve, other: _Curve) -> _Found | None:
    if not other.rates or all(rate is None for rate in right.rates):
        return None
    first = _first_apart(right, other, 1.0)
    one, two = right.rates[0], other.rates[0]
    if one and two and relative(one, two) > _SAME:
        if _first_apart(right, other, two / one) is None or _by_step(right, other, two / one):
            return _Found("scaled", other.updates[0], two, one)
    if first is None:
        return None
    number, expected = first
    rate = other.rates[number]
    assert rate is not None
    kind = "step" if _by_step(right, other, 1.0) else "other"
    return _Found(kind, other.updates[number], rate, expected)


def _first_apart(right: _Curve, other: _Curve, factor: float) -> tuple[int, float] | None:
    """The first rate that the original does not have in this place of the data, times a factor, and what it has."""
    slack = _ALLOWED * max(rate for rate in right.rates if rate is not None) * factor
    around = _AROUND * max(other.step, right.step)
    for number, (place, rate) in enumerate(zip(other.places, other.rates, strict=True)):
        if rate is None or place > right.places[-1]:
            continue
        low = max(0, bisect_left(right.places, place - around) - 1)
        near = [r * factor for r in right.rates[low : bisect_right(right.places, place + around) + 1] if r is not None]
        if near and not min(near) - slack <= rate <= max(near) + slack:
            expected = right.rates[min(bisect_left(right.places, place), len(right.rates) - 1)]
            return number, near[0] if expected is None else expected
    return None


def _by_step(right: _Curve, other: _Curve, factor: float) -> bool:
    """Whether the rates are the original's after as many steps, times a factor."""
    pairs = list(zip(right.rates, other.rates, strict=False))
    return all(one is not None and two is not None and relative(one * factor, two) <= _SAME for one, two in pairs)


def _curves(rank: RankTrace, processes: int) -> dict[int, _Curve]:
    """The rates of each optimizer, numbered in the order of their first steps."""
    places, step = _places(rank, processes)
    numbers: dict[int, int] = {}
    found: defaultdict[int, list[Update]] = defaultdict(list)
    for update in rank.updates:
        found[numbers.setdefault(update.optimizer, len(numbers))].append(update)
    return {
        number: _Curve(
            [places[min(update.after, len(places) - 1)] for update in updates],
            [None if update.lr is None else update.lr + sum(update.rates) for update in updates],
            updates,
            step,
        )
        for number, updates in found.items()
    }


def _places(rank: RankTrace, processes: int) -> tuple[list[float], float]:
    """After each number of backward calls, how much of the data was seen, and how much a step is.

    In passes over the first loader that is trained with; without one, in backward calls of one process.
    """
    loaders = training_loaders(rank)
    batches = [batch for batch in rank.batches if loaders and batch.loader == loaders[0]]
    lengths = [batch.length for batch in batches if batch.length]
    if not lengths:
        return [float(processes * number) for number in range(len(rank.backwards) + 1)], float(processes)
    places = [0.0] * (len(rank.backwards) + 1)
    length, given, epoch, passed = lengths[0], 0, batches[0].epoch, 0
    for batch in batches:
        if batch.epoch != epoch:
            epoch, given, passed = batch.epoch, 0, passed + 1
        length, given = batch.length or length, given + 1
        if batch.before + 1 < len(places):
            places[batch.before + 1] = max(places[batch.before + 1], passed + min(1.0, given / length))
    for number in range(1, len(places)):
        places[number] = max(places[number], places[number - 1])
    return places, 1 / max(1, min(lengths))
