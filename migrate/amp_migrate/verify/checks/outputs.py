"""What the checks of outputs have in common: which part of two runs can be compared, and where something is printed."""

from __future__ import annotations

from collections.abc import Sequence

from amp_migrate.verify import printed
from amp_migrate.verify.checks.common import Traces, as_far
from amp_migrate.verify.checks.differences import first_difference
from amp_migrate.verify.plan import ORIGINAL
from amp_migrate.verify.printed import Line
from amp_migrate.verify.traces import Trace

_LONGEST = 120


def repeats(traces: Traces, name: str, right: str = ORIGINAL) -> bool:
    """Whether a run of one process repeats another one's training, so that it has to print and write the same.

    Where the training differs, the check of that says so, and outputs differ in consequence.
    """
    one, two = as_far(traces, right, name)
    return one is not None and two is not None and first_difference(one, two) is None


def same_reach(traces: Traces, name: str, right: str = ORIGINAL) -> bool:
    """Whether a run went as far as another one."""
    return reach(traces[name]) == reach(traces[right])


def reach(trace: Trace) -> tuple[str, int]:
    """How far a run went: whether to its own end, and over how many backward calls."""
    return trace.status, calls(trace)


def calls(trace: Trace) -> int:
    """The number of backward calls that all ranks of a run made."""
    return min((len(rank.backwards) for rank in trace.ranks), default=0)


def common_part(right: Trace, other: Trace) -> tuple[list[Line], list[Line]]:
    """What two runs of one process printed, as far as both went.

    A run that is stopped ends before a backward call. Of a run that went farther counts what it had printed by then;
    where that is not known, as many lines as the other has.
    """
    one, two = printed.printed_by(right), printed.printed_by(other)
    if reach(right) == reach(other):
        return one, two
    if calls(other) < calls(right) or (calls(other) == calls(right) and other.status == "stopped"):
        return _until(one, two, calls(other)), _whole(two, other)
    return _whole(one, right), _until(two, one, calls(right))


def _until(output: list[Line], shorter: Sequence[Line], end: int) -> list[Line]:
    if all(line.before is not None for line in output):
        return [line for line in output if line.before is not None and line.before <= end]
    return output[: len(shorter)]


def _whole(output: list[Line], trace: Trace) -> list[Line]:
    """Without a last line that the script had not ended when it was stopped."""
    return output[:-1] if output and not trace.printed[0].endswith("\n") else output


def quoted(line: Line | None) -> str:
    """A line as a message quotes it."""
    if line is None:
        return "nothing"
    return f"`{line.raw if len(line.raw) <= _LONGEST else line.raw[:_LONGEST] + ' [...]'}`"


def where(right: Line | None, other: Line | None) -> str:
    """Where a line is printed, in parentheses and with a space before; empty where that is not known."""
    one, two = (line.site if line is not None else "" for line in (right, other))
    if one and two and one != two:
        return f" ({one}, in the migrated version {two})"
    return f" ({one or f'in the migrated version {two}'})" if one or two else ""
