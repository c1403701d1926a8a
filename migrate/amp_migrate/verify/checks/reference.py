"""The original under torch's own autocast: what half precision does to a script by itself, on this device."""

from __future__ import annotations

from amp_migrate.verify.checks.common import Traces
from amp_migrate.verify.plan import PLAIN_AMP, PLAIN_AMP_FP16
from amp_migrate.verify.traces import RankTrace, Trace


def reference_run(traces: Traces, trace: Trace) -> Trace | None:
    """The run under plain autocast in the type of another run; None if it was not made."""
    for name in (PLAIN_AMP, PLAIN_AMP_FP16):
        found = traces.get(name)
        if found is not None and found.half_type == trace.half_type:
            return found
    return None


def reference(traces: Traces, trace: Trace) -> RankTrace | None:
    """What that run recorded; None if it was not made or failed."""
    found = reference_run(traces, trace)
    return found.ranks[0] if found is not None and found.usable else None
