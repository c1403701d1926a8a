"""Every run of the migrated script gets as far as the original.

A run that stops with an error where the original does not is disproof, and so is one that comes to no end: processes
of which none computes, nor has begun a step for far longer than the longest of one process alone takes, wait for each
other. One that is only slow is none, and neither is one in which some process still evaluates. More memory than several
times what one process needs for each of them is disproof too.

What is the machine's doing is none: a missing GPU or port, a full disk, a bound of time or memory that is too small
for what one process takes. A level that computes in half is excused where torch's own autocast does not get the
original through either, which no migration had a hand in: this device lacks what the script needs in half. An error
that has nothing to do with numbers, as of a name that is not there, is not excused. Float16 besides bfloat16 is then
left out altogether. Where O1 runs, and a level with weights in half mixes types in what the script computes
with weights and gradients itself, that stays open: such a level has to be chosen.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from amp_migrate.problems import place
from amp_migrate.verify.checks import ways
from amp_migrate.verify.checks.common import LOSSY, Traces, first_rank
from amp_migrate.verify.checks.reference import reference_run
from amp_migrate.verify.evidence import Check, Verdict
from amp_migrate.verify.failures import wants_gpu
from amp_migrate.verify.plan import INT8, O0, O1_FP16, ORIGINAL, ORIGINAL_TOGETHER, PLAIN_AMP, Asked
from amp_migrate.verify.processes import LONG_IDLE
from amp_migrate.verify.traces import Trace

ID = "runs"
TITLE = "The migrated script runs as the original does"

_NO_GPU = re.compile(
    r"Torch not compiled with CUDA enabled|has no attribute '_cuda_|Found no NVIDIA driver|No CUDA GPUs are available|"
    r"on a CUDA device but torch\.cuda\.is_available\(\) is False"
)
_THE_MACHINE = re.compile(
    r"invalid device ordinal|this machine shows \d+ GPU|Address already in use|EADDRINUSE|No CUDA GPUs are available|"
    r"CUDA out of memory|only supported with GPUs|No space left on device"
)
# A whole package, and no module of one.
_NO_PACKAGE = re.compile(r"\bModuleNotFoundError: No module named '(\w+)'")
_OURS = {"torch", "amp_runtime"}
"""What a migration writes imports of itself: their lack is not the environment's alone."""
# What torch says of a type that an operation was not written for.
_NO_KERNEL = re.compile(r"not implemented for '(?:BFloat16|Half)'")
# What it says of numbers of two types, one of them a half one.
_TYPES_MIXED = re.compile(r"(?=.*(?:dtype|scalar type|same type))(?=.*(?:BFloat16|Half))(?=.*(?:[Ff]loat\b|Float32))")
_NO_NUMBERS = re.compile(
    r"(?:Name|UnboundLocal|Attribute|Import|ModuleNotFound|Syntax|Indentation|Tab|Key|Index|FileNotFound)Error\b"
)
_KILLED = "it was killed by SIGKILL"
_PATIENCE, _LEAST_GAP = 20, 1.0
"""So many times the longest step of one process, and at least of so many seconds, is no step any more but a wait."""
_MEMORY = 3
"""So many times the memory of one process, for each of them, is more than another way to compute the same takes."""


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Say of every run of the migrated script that failed what stopped it."""
    migrated = [
        trace
        for name, trace in traces.items()
        if trace.level is not None and name != INT8 and not is_left_out(traces, trace, asked)
    ]
    stopped = [trace for trace in migrated if not trace.usable]
    verdicts: list[Verdict] = []
    sentences: list[str] = []
    for trace in stopped:
        verdict, sentence = _judge(trace, traces)
        if asked.native and asked.target != "torch" and verdict == "disproved" and _lacks_gpu(trace, traces):
            verdict, sentence = "unproved", f"{_sentence(trace)} It asks for a GPU, and this machine has none."
        verdicts.append(verdict)
        sentences.append(sentence)
    if not migrated:
        return
    if not stopped:
        yield Check(ID, TITLE, "proved", f"All {len(migrated)} runs of it finished without an error.")
        return
    yield Check(ID, TITLE, "disproved" if "disproved" in verdicts else "unproved", " ".join(sentences))


def is_left_out(traces: Traces, trace: Trace, asked: Asked) -> bool:
    """Whether a run is in float16 unasked, and says nothing because torch's own autocast fails in it too."""
    is_besides = trace.name == O1_FP16 and "fp16" not in asked.half_types
    return is_besides and not trace.usable and _judge(trace, traces)[0] == "unproved"


def reason(trace: Trace) -> str:
    """Why a run failed, with file and line where it is known, without a full stop."""
    failure = trace.failure
    if failure is None:
        words = {"timeout": "its time was up", "memory": "it took more memory than allowed"}
        return words.get(trace.status, "it made no backward call")
    where = f" at {place(failure.path, failure.line)}" if failure.path is not None else ""
    return f"{failure.message.rstrip('.')}{where}"


def lacks_gpu(trace: Trace) -> bool:
    """Whether a run failed because it asks for a GPU where torch sees none."""
    return trace.failure is not None and _NO_GPU.search(trace.failure.message) is not None


def _judge(trace: Trace, traces: Traces) -> tuple[Verdict, str]:
    verdict, why = judged(trace, traces)
    parted = ways.parting_in_words(trace.ranks) if verdict == "disproved" else ""
    return verdict, f"{_sentence(trace)} {why}{parted}"


def judged(trace: Trace, traces: Traces) -> tuple[Verdict, str]:
    """What a run that failed says of the migration, and why, as a sentence."""
    if trace.status == "timeout":
        verdict, why = _out_of_time(trace, traces)
    elif trace.status == "memory" or _message(trace).startswith(_KILLED):
        verdict, why = _out_of_memory(trace, traces)
    elif trace.failure is not None and _THE_MACHINE.search(f"{trace.failure.message}\n{trace.failure.output}"):
        verdict, why = "unproved", "This machine cannot make that run."
    elif (missing := _missing_package(trace)) is not None:
        why = f"The package {missing} is not installed, so this run shows nothing: install it, then verify again."
        verdict = "unproved"
    elif trace.level in LOSSY and (excuse := _half_itself(trace, traces)):
        verdict, why = "unproved", excuse
    elif trace.processes > 1 and (before := traces.get(ORIGINAL_TOGETHER)) is not None and not before.usable:
        verdict, why = "unproved", f"Neither does the original in {trace.processes} processes."
    else:
        verdict, why = "disproved", "The original does not fail."
    return verdict, why


def _missing_package(trace: Trace) -> str | None:
    """The package for whose lack a run ended. A part that a package does not have is another matter."""
    found = _NO_PACKAGE.search(_message(trace))
    return found[1] if found is not None and found[1] not in _OURS else None


def _sentence(trace: Trace) -> str:
    name = f"{trace.name} ({trace.processes} processes)" if trace.processes > 1 else trace.name
    return f"{name} failed: {reason(trace)}.{_stood(trace)}"


def _lacks_gpu(trace: Trace, traces: Traces) -> bool:
    """Whether a version for which nobody here stands asks for a GPU, and the original was run without one."""
    original = first_rank(traces, ORIGINAL)
    if original is None or original.device != "cpu" or trace.failure is None:
        return False
    return wants_gpu(trace.failure)


def _stood(trace: Trace) -> str:
    """Where each process of several last began a backward call, where no line is known; empty otherwise."""
    if trace.processes == 1 or (trace.failure is not None and trace.failure.path is not None):
        return ""
    known = [rank for rank in trace.ranks if rank.backwards and rank.backwards[-1].site]
    if not known:
        return ""
    verbs = [" was", *([""] * (len(known) - 1))]
    places = [
        f"of rank {rank.rank}{verb} at {rank.backwards[-1].site}" for rank, verb in zip(known, verbs, strict=True)
    ]
    return f" The last backward call {', '.join(places)}."


def _message(trace: Trace) -> str:
    return trace.failure.message if trace.failure is not None else ""


def _alone(trace: Trace, traces: Traces) -> Trace | None:
    """A run in one process that takes as long as one process of this run should; None if none got through."""
    if trace.processes > 1:
        names = ["O1", PLAIN_AMP] if trace.level in LOSSY else [O0, ORIGINAL]
    else:
        names = [PLAIN_AMP] if trace.level in LOSSY else [ORIGINAL]
    return next((traces[name] for name in names if name in traces and traces[name].usable), None)


def _out_of_time(trace: Trace, traces: Traces) -> tuple[Verdict, str]:
    more = "Allow it more with --timeout, or ask for fewer --steps."
    alone = _alone(trace, traces)
    if alone is None:
        return "unproved", more
    waited = trace.seconds - max((step.time for rank in trace.ranks for step in rank.backwards), default=0.0)
    if waited <= patience(alone, trace.processes) or trace.idle < LONG_IDLE:
        return "unproved", more
    why = (
        f"It computed nothing any more, and had begun no step for {_PATIENCE} times as long as {alone.name} ever takes"
    )
    if trace.processes == 1:
        return "disproved", f"{why}."
    hint = "look for a rank that makes fewer steps, or leaves out a call that all must make"
    return "disproved", f"{why}. The processes wait for each other: {hint}."


def patience(alone: Trace, processes: int) -> float:
    """How long processes may begin no step without waiting for each other, by a run in one process."""
    return _PATIENCE * processes * max(_longest_gap(alone), _LEAST_GAP)


def _longest_gap(alone: Trace) -> float:
    """The longest time between two backward calls, from the start to the first, or from the last to the end."""
    times = [step.time for step in alone.ranks[0].backwards]
    return max(later - earlier for earlier, later in itertools.pairwise([0.0, *times, max(alone.seconds, times[-1])]))


def _out_of_memory(trace: Trace, traces: Traces) -> tuple[Verdict, str]:
    alone = _alone(trace, traces)
    # On a GPU what is recorded is the GPU's memory, and what is bounded that of the machine.
    needs = alone.ranks[0].peak_memory if alone is not None and alone.ranks[0].device == "cpu" else 0
    expected = _MEMORY * needs * trace.processes
    if alone is None or not needs or trace.allowed_memory is None or trace.allowed_memory < expected:
        return "unproved", "Allow it more with --memory, or verify with a smaller batch."
    return "disproved", f"That is more than {_MEMORY} times what {alone.name} takes, for each process."


def _half_itself(trace: Trace, traces: Traces) -> str:
    """Why a failure may be that of half precision on this device, as a sentence; empty if it is not."""
    message = _message(trace)
    if _NO_NUMBERS.match(message):
        return ""
    plain = reference_run(traces, trace)
    if plain is not None and not plain.usable:
        return (
            "The original also fails under torch's own autocast "
            f"({reason(plain)}), so this device says nothing about it."
        )
    if trace.level != "O1" and _NO_KERNEL.search(f"{message}\n{trace.failure.output if trace.failure else ''}"):
        return f"torch has no such operation on this device, and {trace.level} calls it in half."
    if trace.level != "O1" and _TYPES_MIXED.search(message) and first_rank(traces, "O1") is not None:
        return (
            f"At {trace.level} weights and gradients are in half, and the script computes with them itself there. "
            "At O1 it runs: use that level, and leave this one out (--levels O0,O1)."
        )
    return ""
