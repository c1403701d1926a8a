"""Every run of the migrated script gets as far as the original.

A run that stops with an error where the original does not is disproof, and so are processes that wait for each other
for ever. What is the machine's doing is none: bounds of time and memory, operations that this device does not have in
half, a missing GPU or port.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from amp_migrate.problems import place
from amp_migrate.verify.checks.common import Traces
from amp_migrate.verify.evidence import Check, Verdict
from amp_migrate.verify.plan import O0, O0_TOGETHER, ORIGINAL_TOGETHER, Asked
from amp_migrate.verify.traces import Trace

ID = "runs"
TITLE = "The migrated script runs as the original does"

_NOT_THE_SCRIPT = re.compile(
    r"not implemented for '(?:BFloat16|Half)'|invalid device ordinal|this machine shows \d+ GPU|"
    r"Address already in use|EADDRINUSE|No CUDA GPUs are available|CUDA out of memory|only supported with GPUs|"
    r"No space left on device"
)
_PATIENCE = 20
"""Processes that get through take no more than this many times what one takes, and at least that of ten seconds."""


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Say of every run of the migrated script that did not get through what stopped it."""
    migrated = [trace for trace in traces.values() if trace.level is not None]
    stopped = [trace for trace in migrated if not trace.usable]
    verdicts: list[Verdict] = []
    sentences: list[str] = []
    for trace in stopped:
        verdict, sentence = _judge(trace, traces)
        verdicts.append(verdict)
        sentences.append(sentence)
    if not migrated:
        return
    if not stopped:
        yield Check(ID, TITLE, "proved", f"All {len(migrated)} runs of it got through.")
        return
    yield Check(ID, TITLE, "disproved" if "disproved" in verdicts else "unproved", " ".join(sentences))


def reason(trace: Trace) -> str:
    """Why a run did not get through, with file and line where it is known, without a full stop."""
    failure = trace.failure
    if failure is None:
        words = {"timeout": "its time was up", "memory": "it took more memory than allowed"}
        return words.get(trace.status, "it made no backward call")
    where = f" at {place(failure.path, failure.line)}" if failure.path is not None else ""
    return f"{failure.message.rstrip('.')}{where}"


def _judge(trace: Trace, traces: Traces) -> tuple[Verdict, str]:
    name = f"{trace.name} ({trace.processes} processes)" if trace.processes > 1 else trace.name
    sentence = f"{name} did not get through: {reason(trace)}."
    if trace.status == "timeout":
        alone = traces.get(O0)
        if trace.name == O0_TOGETHER and alone is not None and alone.usable:
            if trace.seconds > _PATIENCE * max(alone.seconds, 10.0):
                hang = (
                    f"One process took {alone.seconds:.0f} seconds, so they wait for each other: look for a rank that "
                )
                return "disproved", f"{sentence} {hang}makes fewer steps, or leaves out a call that all must make."
        return "unproved", f"{sentence} Allow it more with --timeout, or ask for fewer --steps."
    if trace.status == "memory":
        return "unproved", f"{sentence} Allow it more with --memory, or verify with a smaller batch."
    if trace.failure is not None and _NOT_THE_SCRIPT.search(f"{trace.failure.message}\n{trace.failure.output}"):
        return "unproved", f"{sentence} This machine cannot make that run."
    before = traces.get(ORIGINAL_TOGETHER)
    if trace.name == O0_TOGETHER and before is not None and not before.usable:
        return "unproved", f"{sentence} Neither does the original in {trace.processes} processes."
    return "disproved", f"{sentence} The original gets through."
