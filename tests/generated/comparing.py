"""What must be equal between a script and its migration, run by run.

In one process at O0 everything is; with a forced loss scale, which is a power of two, all but the losses; in two
processes what this page says of each number; at O1 the script must end, and its numbers be finite.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from amp_migrate.verify.checks import draws, noise, ranks_agree, rates, shares, steering
from amp_migrate.verify.checks.differences import first_difference
from amp_migrate.verify.plan import O0_TOGETHER, ORIGINAL, Asked
from amp_migrate.verify.traces import Trace
from running import Run, Runs

_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|-?\d+")
# Two processes average over other batches, so a number may move; one that is a sum over a rank's share is halved.
_HALF = (0.45, 0.55)


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
    traces = {
        ORIGINAL: Trace(ORIGINAL, None, 1, "ended", original.ranks),
        O0_TOGETHER: Trace(O0_TOGETHER, "O0", 2, "ended", run.ranks),
    }
    for module in (ranks_agree, steering, shares, draws, noise, rates):
        for check in module.check(traces, Asked("train.py")):
            if check.verdict == "disproved" or (check.verdict == "unproved" and module in (draws, rates)):
                yield f"{check.id}: {check.message}"
    if one.buffers != two.buffers:
        yield "buffers differ between ranks"
    if run.stdout[1].strip():
        yield f"rank 1 prints `{run.stdout[1].splitlines()[0]}`"
    if len(original.ranks[0].metrics) != len(one.metrics):
        # Training ended elsewhere, as it may where a measured number decides: other batches, other numbers.
        return
    yield from _printed(original.stdout[0], run.stdout[0])
    if set(run.files) != set(original.files):
        yield f"files differ: {sorted(set(original.files) ^ set(run.files))}"
    for name in sorted(set(run.files) & set(original.files)):
        if run.files[name] != original.files[name]:
            yield f"{name} has {run.files[name]}, the original's {original.files[name]}"


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
