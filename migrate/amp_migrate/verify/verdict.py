"""From the traces of the runs to what they show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks import CHECKS, band, files, o0_exact, printed, runs
from amp_migrate.verify.checks.common import LOSSY, Traces, first_rank, site_numbers, together_in_words
from amp_migrate.verify.checks.differences import first_difference
from amp_migrate.verify.evidence import Check, Evidence, Measured, Verdict, finite
from amp_migrate.verify.plan import O0, O0_SCALED, O0_TOGETHER, ORIGINAL, Asked
from amp_migrate.verify.traces import RankTrace, Trace

_WARM, _LEAST = 3, 3


def judge(asked: Asked, traces: Mapping[str, Trace]) -> Evidence:
    """Apply all checks.

    Args:
        asked: what was to be shown.
        traces: the runs that were made, by name, in the order in which they were made.
    """
    original = traces.get(ORIGINAL)
    checks: tuple[Check, ...] = ()
    if original is not None and original.usable:
        checks = tuple(found for module in CHECKS for found in module.check(traces, asked))
    verdict = _verdict(checks)
    first = first_rank(traces, ORIGINAL)
    return Evidence(
        script=asked.script,
        arguments=asked.arguments,
        verdict=verdict,
        summary=_summary(original, verdict, checks),
        checks=checks,
        runs=tuple(measured(trace, first) for trace in traces.values()),
        steps=asked.steps,
        tolerance=asked.tolerance,
        device=first.device if first is not None else "cpu",
        versions={**dict(asked.versions), **(dict(first.versions) if first is not None else {})},
        notes=(*asked.notes, *_notes(traces)),
    )


def needs_repeat(traces: Traces) -> bool:
    """Whether something differs that should not in any bit, so that the original has to show that it repeats itself."""
    names = ((ORIGINAL, O0), (O0, O0_SCALED))
    pairs = [(first_rank(traces, first), first_rank(traces, second)) for first, second in names]
    return (
        any(
            first is not None and second is not None and first_difference(first, second) is not None
            for first, second in pairs
        )
        or printed.differs(traces)
        or files.differs(traces)
    )


def measured(trace: Trace, original: RankTrace | None = None) -> Measured:
    """One run as a report shows it, at a level that computes in half with its distance from the original."""
    first = trace.ranks[0] if trace.ranks else RankTrace(0)
    sites = site_numbers(first.backwards)
    compared = original is not None and trace.usable and trace.level in LOSSY
    apart = band.deviation(original.backwards, first.backwards) if original is not None and compared else None
    scales = tuple(step.scale for step in first.backwards)
    memory = max((rank.peak_memory for rank in trace.ranks), default=0)
    return Measured(
        name=f"O0, {trace.processes} processes" if trace.name == O0_TOGETHER else trace.name,
        level=trace.level,
        processes=trace.processes,
        status=trace.status,
        losses=tuple(map(finite, trace.losses)),
        scales=scales if any(scale != 1.0 for scale in scales) else (),
        skipped=max((rank.skipped for rank in trace.ranks), default=0),
        steps_per_second=steps_per_second([step.time for step in first.backwards]),
        peak_memory=memory or None,
        error=None if trace.usable else runs.reason(trace),
        sites=tuple(sites) if len(set(sites)) > 1 else (),
        deviation=finite(apart.size) if apart is not None else None,
    )


def steps_per_second(times: Sequence[float]) -> float | None:
    """Backward calls a second, without the first fifth, at least 3; None if fewer than 3 steps are left.

    Args:
        times: when each call began, in seconds.
    """
    start = max(_WARM, len(times) // 5)
    steps = len(times) - 1 - start
    if steps < _LEAST or times[-1] <= times[start]:
        return None
    return steps / (times[-1] - times[start])


def _verdict(checks: Sequence[Check]) -> Verdict:
    verdicts = {check.id: check.verdict for check in checks}
    if any(check.verdict == "disproved" for check in checks):
        return "disproved"
    return "proved" if verdicts.get(o0_exact.ID) == "proved" else "unproved"


def _summary(original: Trace | None, verdict: Verdict, checks: Sequence[Check]) -> str:
    if original is None:
        return "Nothing is proved: the original was not run."
    if not original.usable:
        return f"Nothing is proved, because the original does not run: {runs.reason(original)}."
    failed = [check.id for check in checks if check.verdict == "disproved"]
    open_ = [check.id for check in checks if check.verdict == "unproved"]
    if failed:
        count = f"{len(failed)} of {plural(len(checks), 'check')}"
        return f"The migrated script is wrong: {count} failed ({together_in_words(failed)})."
    if verdict == "unproved":
        return f"Nothing speaks against the migrated script, but {together_in_words(open_)} could not be shown."
    left = f"; {together_in_words(open_)} could not be shown" if open_ else ""
    held = len(checks) - len(open_)
    return (
        f"The migrated script repeats the original in float32 bit for bit; {held} of {len(checks)} checks hold{left}."
    )


def _notes(traces: Traces) -> Iterator[str]:
    stands_in = sorted({name for trace in traces.values() for rank in trace.ranks for name in rank.stands_in})
    for name in stands_in:
        yield f"{name} is not installed: a stand-in took its place in the original, which so trains in float32."
