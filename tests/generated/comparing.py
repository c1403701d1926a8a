"""What must be equal between a script and its migration, run by run.

In one process at O0 everything is; with a forced loss scale, which is a power of two, all but the losses; in two
processes what this page says of each number; at O1 the script must end, and its numbers be finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from amp_migrate.verify.checks import files, files_together, printed, printed_together
from amp_migrate.verify.checks.common import Traces
from amp_migrate.verify.checks.differences import first_difference
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O0, O0_SCALED, O0_TOGETHER, ORIGINAL, ORIGINAL_AGAIN, Asked
from amp_migrate.verify.traces import Batch, RankTrace, Trace
from running import Run, Runs

_RATE = 0.02
"""How far a learning rate may end from the original's, by the highest: schedules have half as many, coarser steps."""
_LEFT_OUT = 0.07
"""The share of a pass over the data that two processes may leave out or read twice: last batches are uneven."""


def differences(runs: Runs) -> list[str]:
    """Everything that differs and should not, in words; empty for a script whose original fails by itself."""
    if not runs.original.ended_well:
        return []
    found = []
    for name, run in runs.migrated.items():
        if not run.ended_well:
            found.append(f"{name}: {run.why}")
            continue
        compare = {"O0": _alone, "scaled": _scaled, "together": _together}.get(name, _in_half)
        found += [f"{name}: {words}" for words in compare(runs.original, run)]
    return found


def _alone(original: Run, run: Run) -> Iterator[str]:
    yield from _same(original, run, O0)
    one, other = original.ranks[0], run.ranks[0]
    if one.generators != other.generators:
        yield "other random numbers were drawn"


def _scaled(original: Run, run: Run) -> Iterator[str]:
    yield from _same(original, run, O0_SCALED)


def _same(original: Run, run: Run, name: str) -> Iterator[str]:
    one, other = original.ranks[0], run.ranks[0]
    difference = first_difference(one, other)
    if difference is not None:
        yield difference.words
    for what in ("buffers", "rates", "skipped"):
        if getattr(one, what) != getattr(other, what):
            yield f"{what} differ"
    for module in (printed, files):
        # The original that repeats itself: what differs is the migrated script's doing.
        yield from _found(module.check, {ORIGINAL_AGAIN: original, ORIGINAL: original, name: run})


def _found(
    check: Callable[[Traces, Asked], Iterator[Check]], runs: Mapping[str, Run], *, certain: bool = False
) -> Iterator[str]:
    """What a check of `amp-migrate verify` has against a run; if ``certain``, only what it calls disproved."""
    traces = {name: _trace(name, run) for name, run in runs.items()}
    for found in check(traces, Asked("train.py")):
        if found.verdict == "disproved" or (found.verdict == "unproved" and not certain):
            yield found.message


def _trace(name: str, run: Run) -> Trace:
    level = None if name in (ORIGINAL, ORIGINAL_AGAIN) else "O0"
    return Trace(name, level, len(run.ranks), "ended", run.ranks, printed=run.stdout, files=run.files)


def _names(run: Run) -> set[str]:
    return {file.name for file in run.files}


def _in_half(original: Run, run: Run) -> Iterator[str]:
    rank = run.ranks[0]
    if not all(math.isfinite(step.loss) for step in rank.backwards):
        yield "a loss is not finite"
    if _names(run) != _names(original):
        yield f"files differ: {sorted(_names(original) ^ _names(run))}"


def _together(original: Run, run: Run) -> Iterator[str]:
    one, two = run.ranks
    yield from _ranks_agree(one, two)
    losses = [[step.loss for step in rank.backwards] for rank in (one, two)]
    if losses[0] == losses[1]:
        yield "both ranks have the same losses"
    if run.stdout[1].strip():
        yield f"rank 1 prints `{run.stdout[1].splitlines()[0]}`"
    passes = [_passes(batches) for batches in (original.ranks[0].batches, one.batches, two.batches)]
    if not passes[0].keys() == passes[1].keys() == passes[2].keys():
        # Training ended elsewhere, as it may where a measured number decides: other batches, other numbers.
        if passes[1].keys() != passes[2].keys():
            yield "the ranks make other numbers of passes over the data"
        return
    if not any(part.left_early for part in passes[0].values()):
        # A number of steps that the script fixes is reached in another part of the schedule.
        yield from _rates(original.ranks[0], one)
    yield from _found(printed_together.check, {ORIGINAL: original, O0_TOGETHER: run}, certain=True)
    yield from _found(files_together.check, {ORIGINAL: original, O0_TOGETHER: run})
    yield from _samples(*passes)


def _ranks_agree(one: RankTrace, two: RankTrace) -> Iterator[str]:
    for what in ("parameters", "buffers", "rates"):
        if getattr(one, what) != getattr(two, what):
            yield f"{what} differ between ranks"
    for what in ("backwards", "updates"):
        if len(getattr(one, what)) != len(getattr(two, what)):
            yield f"other numbers of {what} on each rank"


def _rates(original: RankTrace, one: RankTrace) -> Iterator[str]:
    highest = max([*original.rates, *(update.lr or 0.0 for update in original.updates)], default=0.0)
    apart = [abs(a - b) for a, b in zip(original.rates, one.rates, strict=False)]
    if len(original.rates) != len(one.rates) or any(far > _RATE * highest for far in apart):
        yield f"learning rates end at {one.rates}, the original's at {original.rates}"


@dataclass(frozen=True)
class _Pass:
    """One pass over a loader.

    Attributes:
        left_early: whether it was left before its end.
        samples: the numbers of its samples, sorted.
        batch: the number of samples in its first batch.
    """

    left_early: bool
    samples: list[int]
    batch: int


_Passes = Mapping[tuple[int, int], _Pass]
"""Passes by the number of the loader, and of the pass over it."""


def _passes(batches: Sequence[Batch]) -> _Passes:
    found: dict[tuple[int, int], list[Batch]] = {}
    for batch in batches:
        found.setdefault((batch.loader, batch.epoch), []).append(batch)
    return {
        key: _Pass(
            len(part) < part[0].length,
            sorted(index for batch in part for index in batch.indices),
            len(part[0].indices),
        )
        for key, part in found.items()
    }


def _samples(original: _Passes, one: _Passes, two: _Passes) -> Iterator[str]:
    """Each whole pass over a loader sees together what the original's pass sees."""
    for key in sorted(original):
        right, first, second = (part[key].samples for part in (original, one, two))
        # A pass that is left early or draws with replacement tells nothing; samples of some loaders have no numbers.
        if not right or original[key].left_early or len(set(right)) < len(right) or first == second == right:
            continue
        both, seen = set(first) & set(second), set(first) | set(second)
        # Less than a batch of both ranks is dropped where the script asks for whole batches.
        if len(right) - len(seen) >= max(_LEFT_OUT * len(right), 2 * original[key].batch):
            yield f"pass {key} sees {len(seen)} samples, the original's {len(right)}"
        if len(both) > _LEFT_OUT * len(right) and first != right:
            yield f"pass {key} gives {len(both)} of {len(right)} samples to both ranks"
