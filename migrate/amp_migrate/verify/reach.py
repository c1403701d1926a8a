"""How far a verification reaches: what ran, beyond which nothing is said, in one sentence."""

from __future__ import annotations

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks.common import LOSSY, Traces, first_rank, together_in_words
from amp_migrate.verify.plan import INT8, ORIGINAL
from amp_migrate.verify.traces import Trace

_TYPES = {"bf16": "bfloat16", "fp16": "float16"}


def reach(traces: Traces) -> str:
    """What follows "How far it reaches:"; empty where the original failed, or nothing ran beside it.

    It holds for what ended well only, so no run in it is one that a check has to name.
    """
    original = first_rank(traces, ORIGINAL)
    migrated = [trace for name, trace in traces.items() if trace.level is not None and trace.usable and name != INT8]
    if original is None or not migrated:
        return ""
    processes = sorted({trace.processes for trace in migrated})
    counts = f"{together_in_words([str(count) for count in processes])} process{'' if processes == [1] else 'es'}"
    return (
        f"{_steps(traces, migrated)}, with the data that these arguments read, "
        f"on {_device(original.device)}, at {_levels(migrated)}, in {counts}{_int8(traces)}."
    )


def _int8(traces: Traces) -> str:
    """Where the int8 model was compared; empty where none was."""
    trace = traces.get(INT8)
    return "; the int8 model at O0 in 1 process" if trace is not None and trace.usable and trace.ranks[0].int8 else ""


def _steps(traces: Traces, migrated: list[Trace]) -> str:
    """How many backward calls were compared, and whether the script makes more."""
    counts = {trace.name: min(len(rank.backwards) for rank in trace.ranks) for trace in migrated}
    whole = len(traces[ORIGINAL].ranks[0].backwards)
    longest = max(counts.values())
    if traces[ORIGINAL].status == "ended":
        words = f"to the script's end ({plural(whole, 'backward call')})"
    else:
        words = f"to backward call {longest}, after which the script goes on"
    fewer = min(count for count in counts.values())
    alone = {trace.name for trace in migrated if trace.processes == 1}
    # In several processes a script has fewer steps to make.
    shortest = min((counts[name] for name in alone), default=fewer)
    return f"{words} (some runs to {shortest} only)" if shortest < min(longest, whole) else words


def _device(name: str) -> str:
    return "the CPU" if name == "cpu" else name


def _levels(migrated: list[Trace]) -> str:
    """The levels, each with the types that it computed in: "O0, O1 in bfloat16 and float16 and O2 in bfloat16"."""
    found: dict[str, list[str]] = {}
    for trace in migrated:
        types = found.setdefault(trace.level or "", [])
        half = _TYPES.get(trace.half_type or "")
        if trace.level in LOSSY and half is not None and half not in types:
            types.append(half)
    return together_in_words(
        [f"{level} in {together_in_words(types)}" if types else level for level, types in found.items()]
    )
