"""A script that was written for several processes does in them what it did before, bit for bit.

The original is run in as many processes, and each process of the migrated one has to repeat its counterpart at O0:
losses, steps, gradient norms and parameters. How such a script shares out its data, and what it does to its learning
rate, is its own: the checks of that are left out then. Sums over processes may be added in another order from run to
run, so a first difference below 1e-5 is no evidence.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_migrate.verify.checks import runs
from amp_migrate.verify.checks.common import Traces, cut_alike, talk, together
from amp_migrate.verify.checks.differences import first_difference
from amp_migrate.verify.checks.repeats import unrepeatable
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O0_TOGETHER, ORIGINAL_TOGETHER, Asked

ID = "together-exact"

_ROUNDING = 1e-5


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the processes of the original with those of the migrated script, one by one."""
    original, migrated = traces.get(ORIGINAL_TOGETHER), together(traces)
    if original is None:
        return
    title = f"{original.processes} processes reproduce those of the original bit for bit"
    if not original.usable:
        message = f"The original fails in {original.processes} processes: {runs.reason(original)}."
        yield Check(ID, title, "unproved", message)
        return
    if not talk(original.ranks):
        message = (
            "The original creates no process group when it is started as torchrun starts it: it may need an "
            "option for that, so there is nothing to compare with."
        )
        yield Check(ID, title, "unproved", message)
        return
    if not migrated:
        if traces[O0_TOGETHER].usable:
            message = "The processes of the original communicate, those of the migrated script do not."
            yield Check(ID, title, "disproved", message)
        return
    for right, other in zip(original.ranks, migrated, strict=False):
        difference = first_difference(*cut_alike(original, right, traces[O0_TOGETHER], other))
        if difference is None:
            continue
        words = f"In process {right.rank} {difference.words}."
        if difference.kind == "parameters" or difference.relative <= _ROUNDING:
            message = f"{words} Sums over processes that are added in another order may do that."
            yield Check(ID, title, "unproved", message)
        elif reason := unrepeatable(traces):
            yield Check(ID, title, "unproved", f"{words} {reason}")
        else:
            message = f"{words} Compare what the migration changed before that with the original's."
            yield Check(ID, title, "disproved", message)
        return
    message = f"Over {len(migrated[0].backwards)} backward calls every process reproduces its counterpart bit for bit."
    yield Check(ID, title, "proved", message)
