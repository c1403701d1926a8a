"""What must be equal between a script and its migration, run by run.

In one process at O0 everything is; with a forced loss scale, which is a power of two, all but the losses; in two
processes what this page says of each number; at O1 the script must end, and its numbers be finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from amp_migrate.verify.checks import (
    draws,
    files,
    files_together,
    noise,
    printed,
    printed_together,
    ranks_agree,
    rates,
    shares,
    steering,
)
from amp_migrate.verify.checks.common import Traces
from amp_migrate.verify.checks.differences import first_difference
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O0, O0_SCALED, O0_TOGETHER, ORIGINAL, ORIGINAL_AGAIN, Asked
from amp_migrate.verify.traces import Trace
from running import Run, Runs


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
            yield f"{found.id}: {found.message}"


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
    runs = {ORIGINAL: original, O0_TOGETHER: run}
    for module in (ranks_agree, steering, shares, draws, noise, rates):
        yield from _found(module.check, runs, certain=module not in (draws, rates))
    if one.buffers != two.buffers:
        yield "buffers differ between ranks"
    if run.stdout[1].strip():
        yield f"rank 1 prints `{run.stdout[1].splitlines()[0]}`"
    if len(original.ranks[0].metrics) != len(one.metrics):
        # Training ended elsewhere, as it may where a measured number decides: other batches, other numbers.
        return
    yield from _found(printed_together.check, runs, certain=True)
    yield from _found(files_together.check, runs)
