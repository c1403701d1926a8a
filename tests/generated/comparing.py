"""What must be equal between a script and its migration, run by run.

In one process at O0 everything is; with a forced loss scale, which is a power of two, all but the losses; in two
processes what this page says of each number; at O1 the script must end, and its numbers be finite.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from amp_migrate.verify.checks.differences import first_difference
from amp_migrate.verify.traces import Batch, RankTrace
from running import Run, Runs

_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|-?\d+")
# Two processes average over other batches, so a number may move; one that is a sum over a rank's share is halved.
_HALF = (0.45, 0.55)
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
    yield from _same(original, run)
    one, other = original.ranks[0], run.ranks[0]
    if one.generators != other.generators:
        yield "other random numbers were drawn"


def _scaled(original: Run, run: Run) -> Iterator[str]:
    yield from _same(original, run)


def _same(original: Run, run: Run) -> Iterator[str]:
    one, other = original.ranks[0], run.ranks[0]
    difference = first_difference(one, other)
    if difference is not None:
        yield difference.words
    for what in ("buffers", "rates", "skipped"):
        if getattr(one, what) != getattr(other, what):
            yield f"{what} differ"
    if original.stdout != run.stdout:
        yield f"prints {_first_line(run.stdout[0], original.stdout[0])}"
    if original.files != run.files:
        yield f"files differ: {sorted(original.files.items() ^ run.files.items())}"


def _first_line(text: str, expected: str) -> str:
    lines = zip([*text.splitlines(), ""], [*expected.splitlines(), ""], strict=False)
    one, two = next(((one, two) for one, two in lines if one != two), ("", ""))
    return f"`{one}` where the original prints `{two}`"


def _in_half(original: Run, run: Run) -> Iterator[str]:
    rank = run.ranks[0]
    if not all(math.isfinite(step.loss) for step in rank.backwards):
        yield "a loss is not finite"
    if set(run.files) != set(original.files):
        yield f"files differ: {sorted(set(original.files) ^ set(run.files))}"


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
    yield from _printed(original.stdout[0], run.stdout[0])
    yield from _samples(*passes)
    if set(run.files) != set(original.files):
        yield f"files differ: {sorted(set(original.files) ^ set(run.files))}"
    for name in sorted(set(run.files) & set(original.files)):
        if run.files[name] != original.files[name]:
            yield f"{name} has {run.files[name]}, the original's {original.files[name]}"


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


def _printed(expected: str, printed: str) -> Iterator[str]:
    """The last line of each sentence, with a number that is about half of the original's."""
    one, two = ({_NUMBER.sub("#", line): line for line in text.splitlines()} for text in (expected, printed))
    for sentence in one.keys() & two.keys():
        numbers = zip(_NUMBER.findall(one[sentence]), _NUMBER.findall(two[sentence]), strict=True)
        for right, other in numbers:
            # Counts of steps and samples may change their meaning, which a note says.
            if "." in right and abs(float(right)) > 1e-6 and _HALF[0] < float(other) / float(right) < _HALF[1]:
                yield f"prints `{two[sentence]}` where one process prints `{one[sentence]}`"
                break


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
