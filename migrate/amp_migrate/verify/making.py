"""Which runs are made, in which order, and which of them depend on what others gave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amp_migrate.verify import plan
from amp_migrate.verify.checks.common import is_distributed_already
from amp_migrate.verify.joined import joined_batches
from amp_migrate.verify.quantizing import without_int8
from amp_migrate.verify.runs import Maker, StartAgainError
from amp_migrate.verify.traces import Trace
from amp_migrate.verify.verdict import needs_fp16_reference, needs_repeat

if TYPE_CHECKING:
    from amp_migrate.verify.output import Progress


def make_all(maker: Maker, asked: plan.Asked, progress: Progress) -> dict[str, Trace]:
    """Make the runs; where the original fails there is nothing to compare with."""
    try:
        return _make_all(maker, asked, progress)
    except StartAgainError:
        progress.line("  again, in new interpreters: the script does not run in a forked process")
        return _make_all(maker, asked, progress)


def _make_all(maker: Maker, asked: plan.Asked, progress: Progress) -> dict[str, Trace]:
    traces: dict[str, Trace] = {}

    def make(planned: plan.Planned, **more: Any) -> Trace:
        progress.begin(planned.name)
        trace = maker.make(planned, **more)
        progress.done(trace)
        if asked.int8 == "given" and planned.migrated and plan.ORIGINAL in traces:
            trace = without_int8(trace, traces[plan.ORIGINAL])
        traces[planned.name] = trace
        return trace

    expected = list(plan.planned(asked))
    # Nearly always made as well, at the end.
    joined = [plan.original_merged(asked.processes)] if asked.processes > 1 else []
    maker.budget.expect([*expected, *joined])
    for planned in expected:
        if planned.half_type is not None and not plan.is_wanted(planned, asked, maker.half_type, traces):
            continue
        trace = make(planned)
        if planned.name == plan.ORIGINAL and not trace.usable:
            return traces
    together = traces.get(plan.O0_TOGETHER)
    if together is not None and (asked.distribution == "already" or is_distributed_already(traces)):
        make(plan.original_together(asked.processes))
    elif together is not None and together.usable and (batches := joined_batches(together)):
        make(plan.original_merged(asked.processes), batches=batches)
    if needs_fp16_reference(traces, asked):
        make(plan.plain_amp_in_fp16())
    if needs_repeat(traces):
        make(plan.original_again())
    return traces
