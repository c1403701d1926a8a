"""At O0 the migrated script prints what the original prints.

Every line on standard output is the original's, with the same numbers. What no two runs have in common is left out by
its pattern: times, durations, speeds, sizes of memory, addresses, progress bars (see
:mod:`amp_migrate.verify.printed`). The same holds with a loss scale: a number that is printed from a scaled loss or
scaled gradients is 65536 times as large there. Numbers may differ by 2**-20 of their size there, as for ``o0-scaled``.

Where a line differs, the original's second run tells whether it is one that is the same in each run. A number that
differs between the two runs of the original is no evidence; nor is a line that the second run did not come to.

Where the training itself differs, its own check says so, and nothing is said here. Where one run was stopped earlier,
only what both had printed by then is compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_migrate.out.terminal import plural
from amp_migrate.verify import printed
from amp_migrate.verify.checks.common import Traces
from amp_migrate.verify.checks.outputs import common_part, quoted, repeats, where
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import LOSS_SCALE, O0, O0_SCALED, ORIGINAL, ORIGINAL_AGAIN, Asked
from amp_migrate.verify.printed import Difference, Line, Unsteady

ID = "o0-printed"
TITLE = "O0 prints what the original prints"

SCALED_ID = "o0-scaled-printed"
_SCALED_TITLE = "A loss scale changes no printed number"
_NOISE = 2.0**-20


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare standard output at O0, without and with a loss scale."""
    if repeats(traces, O0) and _say_something(traces, O0):
        yield _judged(traces, O0, ID, TITLE)
    if repeats(traces, O0_SCALED) and _say_something(traces, O0_SCALED):
        yield _judged(traces, O0_SCALED, SCALED_ID, _SCALED_TITLE, tolerance=_NOISE)


def differs(traces: Traces) -> bool:
    """Whether something is printed otherwise, so that the original has to show that it repeats itself."""
    return any(
        repeats(traces, name) and _difference(traces, name, tolerance, frozenset()) is not None
        for name, tolerance in ((O0, 0.0), (O0_SCALED, _NOISE))
    )


def _say_something(traces: Traces, name: str) -> bool:
    return any(common_part(traces[ORIGINAL], traces[name]))


def _judged(traces: Traces, name: str, id_: str, title: str, tolerance: float = 0.0) -> Check:
    again = traces.get(ORIGINAL_AGAIN)
    one, two = common_part(traces[ORIGINAL], again) if again is not None and again.usable else ([], [])
    difference = _difference(traces, name, tolerance, printed.unsteady(one, two))
    if difference is None:
        right, _ = common_part(traces[ORIGINAL], traces[name])
        return Check(id_, title, "proved", f"{_extent(right)} on standard output are those of the original.")
    message = (
        f"It prints {quoted(difference.other)} where the original prints {quoted(difference.right)}"
        f"{where(difference.right, difference.other)}."
    )
    reason = _unknown(difference, one, two)
    if reason:
        return Check(id_, title, "unproved", f"{message} {reason}")
    hint = " Print it before it is scaled, or unscale it first." if name == O0_SCALED else ""
    return Check(id_, title, "disproved", f"{message} The original is reproducible there.{hint}")


def _difference(traces: Traces, name: str, tolerance: float, unsteady: Unsteady) -> Difference | None:
    right, other = common_part(traces[ORIGINAL], traces[name])
    known = set(unsteady)
    while True:
        found = printed.first_difference(right, other, frozenset(known), tolerance)
        if found is None or not (tolerance and _is_the_scale(found)):
            return found
        assert found.right is not None and found.place is not None
        known.add((found.right.sentence, found.place))


def _is_the_scale(difference: Difference) -> bool:
    """Whether the script prints the loss scale itself, which is another one by intention."""
    if difference.place is None or difference.other is None:
        return False
    return printed.value(difference.other.numbers[difference.place]) == LOSS_SCALE


def _unknown(difference: Difference, first: list[Line], again: list[Line]) -> str:
    """Why a difference is no evidence, as a sentence; empty if it is."""
    if not first:
        return "Whether the original prints the same in every run is not known: its second run has not come so far."
    apart = printed.first_difference(first, again, printed.unsteady(first, again))
    if apart is not None and apart.number <= difference.number:
        return (
            f"But the original is not reproducible either: in a second run it prints {quoted(apart.other)} where it "
            f"printed {quoted(apart.right)}."
        )
    if difference.place is not None and difference.right is not None:
        if difference.right.sentence not in printed.steady_sentences(first, again):
            return (
                "The second run of the original has not come so far, so this may be a number of its own in every run."
            )
    return ""


def _extent(output: list[Line]) -> str:
    numbers = sum(len(line.numbers) for line in output)
    return f"{plural(len(output), 'line').capitalize()} with {plural(numbers, 'number')}" if output else "All lines"
