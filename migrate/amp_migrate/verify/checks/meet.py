"""The processes of a version that was given train together.

Where its text speaks of several processes it is started in them, as torchrun does it or as the user launches it. They
have to make a group: started several times without one, a script is as many trainings.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_migrate.verify.checks.common import Traces, talk
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O0_TOGETHER, Asked

ID = "meet"
TITLE = "The processes of the migrated version train together"


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Look at whether they made a group."""
    trace = traces.get(O0_TOGETHER)
    if not asked.native or trace is None or not trace.usable:
        return
    if len(trace.ranks) > 1 and talk(trace.ranks):
        yield Check(ID, TITLE, "proved", f"{len(trace.ranks)} processes created a process group.")
        return
    message = (
        "It speaks of several processes, and those that were started did not make a group. If it needs an option for "
        'that, or starts them itself, say so: --launch "torchrun --nproc-per-node 2 train.py --distributed". If it is '
        "meant for one process, --procs 1 leaves this out."
    )
    yield Check(ID, TITLE, "unproved", message)
