"""What people read of a verification, in the terminal and in a report: nothing that a second one would contradict.

Losses are repeatable where the script is, so they are told as numbers only there. A speed is told as the range that it
was measured in. Memory is told of a GPU's allocator only: that of a process on a CPU is mostly the libraries it loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from amp_migrate.out.terminal import plural
from amp_migrate.verify.evidence import Check, Evidence, Measured, Speed, Verdict
from amp_migrate.verify.plan import ORIGINAL, ORIGINAL_AGAIN

VARIES = "varies"
"""What stands in place of a number of a script that is not reproducible."""
OTHER_NUMBERS = "The script is not reproducible: a second verification finds other losses and other distances."

_WORST: tuple[Verdict, ...] = ("disproved", "unproved", "proved")
_UNTIL = {
    "failed": "an error",
    "timeout": "its time was up",
    "memory": "its memory was up",
}


def reach_label(verdict: Verdict) -> str:
    """What stands before :func:`reach`: only what is proved reaches somewhere."""
    return "How far it reaches:" if verdict == "proved" else "How far it was compared:"


def reach(evidence: Evidence) -> str:
    """How far the verdict reaches; empty where nothing was compared."""
    if evidence.reach or not evidence.checks:
        return evidence.reach
    where = "the CPU" if evidence.device == "cpu" else evidence.device
    return f"to backward call {evidence.steps} at most, on {where}."


def in_the_way(evidence: Evidence) -> tuple[Check, ...]:
    """The checks that keep a migration from being proved: those that do not hold, else those that are open."""
    return tuple(check for check in evidence.checks if check.verdict == evidence.verdict != "proved")


def worst_first(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Those that do not hold, then the open ones, then those that hold, each in their own order."""
    return tuple(sorted(checks, key=lambda check: _WORST.index(check.verdict)))


def worst_last(checks: Sequence[Check]) -> tuple[Check, ...]:
    """The other way round, for a terminal: it is read from below, where the verdict stands."""
    return tuple(sorted(checks, key=lambda check: -_WORST.index(check.verdict)))


def until(run: Measured) -> str:
    """How far a run went, and what its bound was: "its end", "its bound of 50 steps"."""
    if run.status == "ended":
        return "its end" if run.steps_bound is None else f"its end (bound: {plural(run.steps_bound, 'step')})"
    if run.status == "stopped":
        # Where it was a bound of time that ended a run, it has recorded the steps that it came to.
        return f"its bound of {plural(run.steps_bound or len(run.losses), 'step')}"
    return _UNTIL.get(run.status, run.status)


def is_counted(run: Measured) -> bool:
    """Whether the number of its steps is the script's doing, and not that of the clock or of the machine's memory."""
    return run.status not in ("timeout", "memory")


def repeats(evidence: Evidence) -> bool:
    """Whether two runs of the original had the same losses, as far as both went; true where only one was made."""
    losses = {run.name: run.losses for run in evidence.runs}
    pairs = zip(losses.get(ORIGINAL, ()), losses.get(ORIGINAL_AGAIN, ()), strict=False)
    return all(first == second for first, second in pairs)


def speed_range(speed: Speed) -> str:
    """The factors between which a speed lies, rounded outwards: "1.7 to 1.9×"."""
    low, high = (_rounded(value, up) for value, up in ((speed.low, False), (speed.high, True)))
    return f"{low}×" if low == high else f"{low} to {high}×"


def speed_in_words(speed: Speed) -> str:
    """A speed as a sentence: "O1 makes 1.7 to 1.9× the steps of original in the same time."."""
    return f"{speed.run} makes {speed_range(speed)} the steps of {speed.beside} in the same time."


def memory_in_words(evidence: Evidence, run: Measured) -> str:
    """The peak of a GPU's allocator in two digits: "about 1.2 GiB"; empty on a CPU and where it is not known."""
    if evidence.device == "cpu" or not run.peak_memory:
        return ""
    size = float(f"{run.peak_memory / 2**20:.2g}")
    return f"about {size:.0f} MiB" if size < 1000 else f"about {float(f'{run.peak_memory / 2**30:.2g}'):g} GiB"


def _rounded(value: float, up: bool) -> str:
    """A factor in steps of a tenth, or of a hundredth where it is below a half."""
    digits = 1 if value >= 0.5 else 2
    unit = 10.0**-digits
    whole = value / unit
    nearest = round(whole)
    if abs(whole - nearest) > 1e-6:
        nearest = int(whole) + 1 if up else int(whole)
    return f"{nearest * unit:.{digits}f}"
