"""From the traces of the runs to what they show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from amp_migrate.out.terminal import plural
from amp_migrate.verify import speed
from amp_migrate.verify.checks import CHECKS, band, files, o0_exact, printed, repeats, runs, sync_bn
from amp_migrate.verify.checks.common import LOSSY, Traces, as_far, first_rank, site_numbers, together_in_words
from amp_migrate.verify.checks.differences import first_difference
from amp_migrate.verify.evidence import Check, Evidence, Measured, Verdict, finite
from amp_migrate.verify.plan import (
    O0,
    O0_SCALED,
    O0_TOGETHER,
    O1_FP16,
    O1_TOGETHER,
    ORIGINAL,
    ORIGINAL_AGAIN,
    PLAIN_AMP,
    Asked,
)
from amp_migrate.verify.reach import reach
from amp_migrate.verify.traces import RankTrace, Trace
from amp_migrate.verify.what_to_do import in_target

_TOGETHER = (O0_TOGETHER, O1_TOGETHER)
_AT_END = ("steps", "parameters")


def judge(asked: Asked, traces: Mapping[str, Trace]) -> Evidence:
    """Apply all checks.

    Args:
        asked: what was to be shown.
        traces: the runs that were made, by name, in the order in which they were made.
    """
    original = traces.get(ORIGINAL)
    checks: tuple[Check, ...] = ()
    if original is not None and original.usable:
        checks = tuple(in_target(found, asked) for module in CHECKS for found in module.check(traces, asked))
    verdict = _verdict(checks)
    first = first_rank(traces, ORIGINAL)
    return Evidence(
        script=asked.script,
        arguments=asked.arguments,
        verdict=verdict,
        summary=_summary(original, verdict, checks, asked),
        checks=checks,
        runs=tuple(measured(trace, first) for trace in traces.values()),
        steps=asked.steps,
        tolerance=asked.tolerance,
        device=first.device if first is not None else "cpu",
        versions={**dict(asked.versions), **(dict(first.versions) if first is not None else {})},
        notes=(*asked.notes, *_notes(traces, asked), *speed.notes(traces)),
        reach=reach(traces),
        speeds=speed.speeds(traces),
        target=asked.target,
    )


def needs_repeat(traces: Traces) -> bool:
    """Whether something differs farther on than the original is known to repeat itself."""
    original, again = first_rank(traces, ORIGINAL), first_rank(traces, ORIGINAL_AGAIN)
    names = ((ORIGINAL, O0), (O0, O0_SCALED))
    pairs = [as_far(traces, first, second) for first, second in names]
    differences = [
        difference
        for first, second in pairs
        if first is not None and second is not None
        if (difference := first_difference(first, second)) is not None
    ]
    left = printed.differs(traces) or files.differs(traces)
    if original is None or again is None:
        return bool(differences) or left
    if traces[ORIGINAL_AGAIN].status == "ended" or len(again.backwards) >= len(original.backwards):
        return False
    return left or any(
        difference.step > len(again.backwards) or difference.kind in _AT_END for difference in differences
    )


def needs_fp16_reference(traces: Traces, asked: Asked) -> bool:
    """Whether the run in float16 is such that torch's own autocast in it has something to tell."""
    trace, original = traces.get(O1_FP16), first_rank(traces, ORIGINAL)
    if trace is None or original is None:
        return False
    return not trace.usable or band.judge(traces, asked, O1_FP16, trace, original).verdict != "proved"


def measured(trace: Trace, original: RankTrace | None = None) -> Measured:
    """One run as a report shows it, at a level that computes in half with its distance from the original."""
    first = trace.ranks[0] if trace.ranks else RankTrace(0)
    sites = site_numbers(first.backwards)
    # In several processes a step takes other samples than the original's.
    compared = original is not None and trace.usable and trace.level in LOSSY and trace.processes == 1
    apart = band.deviation(original.backwards, first.backwards) if original is not None and compared else None
    scales = tuple(step.scale for step in first.backwards)
    memory = max((rank.peak_memory for rank in trace.ranks), default=0)
    return Measured(
        name=f"{trace.level}, {trace.processes} processes" if trace.name in _TOGETHER else trace.name,
        level=trace.level,
        processes=trace.processes,
        status=trace.status,
        losses=tuple(map(finite, trace.losses)),
        scales=scales if any(scale != 1.0 for scale in scales) else (),
        skipped=max((rank.skipped for rank in trace.ranks), default=0),
        peak_memory=memory or None,
        error=None if trace.usable else runs.reason(trace),
        sites=tuple(sites) if len(set(sites)) > 1 else (),
        deviation=finite(apart.size) if apart is not None else None,
        steps_bound=trace.steps,
    )


def _verdict(checks: Sequence[Check]) -> Verdict:
    if any(check.verdict == "disproved" for check in checks):
        return "disproved"
    exact = any((check.id, check.verdict) == (o0_exact.ID, "proved") for check in checks)
    return "proved" if exact and all(check.verdict == "proved" for check in checks) else "unproved"


def _summary(original: Trace | None, verdict: Verdict, checks: Sequence[Check], asked: Asked) -> str:
    if original is None:
        return "The original was not run."
    if not original.usable:
        return f"The original does not run: {runs.reason(original)}."
    script = "migrated script in plain PyTorch" if asked.target == "torch" else "migrated script"
    failed = [check.id for check in checks if check.verdict == "disproved"]
    open_ = [check.id for check in checks if check.verdict == "unproved"]
    if failed:
        count = f"{len(failed)} of {plural(len(checks), 'check')}"
        return f"The {script} is wrong: {count} failed ({together_in_words(failed)})."
    if repeats.ID in open_:
        others = [id_ for id_ in open_ if id_ != repeats.ID]
        besides = f", and {together_in_words(others)} stayed open" if others else ""
        return f"It is not known whether the original is reproducible ({repeats.ID}){besides}."
    if open_:
        return f"Open: {together_in_words(open_)}; no check failed for the {script}."
    if verdict == "unproved":
        return f"The {script} was not compared with the original bit for bit."
    return f"The {script} reproduces the original in float32 bit for bit; all {len(checks)} checks hold."


def _notes(traces: Traces, asked: Asked) -> Iterator[str]:
    original = traces.get(ORIGINAL)
    if original is not None and runs.lacks_gpu(original):
        yield (
            "The script asks for a GPU, and none is here: verify it where one is, or let it choose its device "
            "(torch.cuda.is_available()) before it is migrated."
        )
    stands_in = sorted({name for trace in traces.values() for rank in trace.ranks for name in rank.stands_in})
    for name in stands_in:
        yield f"{name} is not installed: a stand-in took its place in the original, which so trains in float32."
    if (plain := traces.get(PLAIN_AMP)) is not None and not plain.usable:
        yield (
            f"The original fails under torch's own autocast on this device ({runs.reason(plain)}): that "
            "run cannot tell what half precision does to the script by itself."
        )
    if sync_bn.lacks_sync_bn(traces, asked):
        yield (
            "On a CPU torch has no synchronised batch norm: there each process normalises by its own samples, so what "
            "several processes compute is held against one only as far as that allows. On a GPU sync-bn compares it."
        )
    trace = traces.get(O1_FP16)
    if trace is not None and runs.is_left_out(traces, trace, asked):
        yield (
            f"{O1_FP16} failed ({runs.reason(trace)}), and so did the original under torch's own autocast in float16: "
            "that type was not checked."
        )
