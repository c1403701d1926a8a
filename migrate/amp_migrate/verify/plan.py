"""Which runs a verification makes, and what was asked of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from amp_migrate.verify.traces import Trace

ORIGINAL = "original"
ORIGINAL_AGAIN = "original again"
ORIGINAL_MERGED = "original, batches joined"
ORIGINAL_TOGETHER = "original, together"
PLAIN_AMP = "original, plain autocast"
PLAIN_AMP_FP16 = "original, plain autocast, fp16"
O0 = "O0"
O0_SCALED = "O0, scaled"
O0_TOGETHER = "O0, together"
O1_FP16 = "O1, fp16"
O1_TOGETHER = "O1, together"
INT8 = "int8"

RUNS: Mapping[str, str] = MappingProxyType(
    {
        ORIGINAL: "the untouched script, one process",
        ORIGINAL_AGAIN: "the original a second time: is it reproducible?",
        O0: "the migrated script in float32: has to reproduce the original exactly",
        O0_SCALED: "the same with a fixed loss scale: finds gradients that are read or used while scaled",
        PLAIN_AMP: "the original under torch's own autocast and loss scaling: what half precision does to it by itself",
        "O1": "the migrated script under autocast",
        O1_FP16: "the same in float16, where the device would take bfloat16: this is where the scaler has work",
        PLAIN_AMP_FP16: "the original under torch's own autocast in float16, made only where O1 in it is not near",
        "O2": "the migrated script with weights in half and masters in float32",
        "O3": "the migrated script in half throughout",
        O0_TOGETHER: "the migrated script in float32, in several processes",
        O1_TOGETHER: "the migrated script under autocast, in several processes: what will be launched",
        INT8: "the migrated script with its quantization, in float32 and to its end: how far is the int8 model?",
        ORIGINAL_MERGED: "the original in one process, as many batches made one as there are processes elsewhere",
        ORIGINAL_TOGETHER: "the original in several processes, where it was written for them",
    }
)
"""The names of all runs, in the order in which they are shown, and what each is for."""

LOSS_SCALE = 2.0**16
"""A power of two: multiplying by it and dividing by it again is exact in float32. float16 training begins with it."""


@dataclass(frozen=True)
class Asked:
    """What is to be shown, and all that a judgement needs to know besides the traces.

    Attributes:
        script: the entry script, as the user named it.
        arguments: what it is started with.
        steps: backward calls of each run.
        processes: how many processes the distributed runs have; 1 for none.
        tolerance: half the width of the band that lossy levels must stay in, relative.
        levels: those to compare, in order: ``("O0", "O1", "O2")``.
        precision: what was done about mixed precision: ``"migrated"``, ``"declined"``, ``"already"`` or ``"absent"``;
            ``"unknown"`` where the migrated version was given.
        distribution: the same about several processes; ``"off"`` where it was not asked for.
        sync_bn: whether batch norm is to be synchronised over the processes.
        notes: what a reader has to know besides, such as why distribution was declined.
        versions: of ``amp-migrate``; those of the runs are in their traces.
        native: whether the migrated version does without the runtime, so that O1 is all that it computes in half.
        target: what the migrated version is made of: ``"runtime"`` or ``"torch"``; empty where it was made by hand.
        int8: who wrote the quantization that is compared: ``"migrated"`` by this program, ``"given"`` with a version
            that was given; empty where there is none.
        quantize: the kind of it, as far as it is known before it runs; else empty.
        types: the half types that a version in plain PyTorch can compute in; None where it is not known before it runs.
        half_types: those to compute in; empty for the usual ones.
    """

    script: str
    arguments: tuple[str, ...] = ()
    steps: int = 50
    processes: int = 2
    tolerance: float = 0.05
    levels: tuple[str, ...] = ("O0", "O1", "O2")
    precision: str = "migrated"
    distribution: str = "migrated"
    sync_bn: bool = True
    notes: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    native: bool = False
    half_types: tuple[str, ...] = ()
    target: str = "runtime"
    int8: str = ""
    quantize: str = ""
    types: frozenset[str] | None = None


Reach = Literal["whole", "part", "end"]
"""Whether a run goes as far as the original does, as far as tells, with a smaller share of the time, or to its end."""


@dataclass(frozen=True)
class Planned:
    """One run to make.

    Attributes:
        name: a key of :data:`RUNS`.
        migrated: whether of the migrated version.
        level: what ``AMP_OPT_LEVEL`` is set to; None for the original.
        processes: how many are started together.
        batch_factor: how many batches of the training loaders are made one.
        loss_scale: what ``AMP_LOSS_SCALE`` is set to.
        half_type: ``"fp16"`` or ``"bf16"``; None for the one that all runs have where nothing else is said.
        plain_amp: whether the recorder puts it under torch's own autocast and loss scaling.
        quantizes: whether it makes int8 models, where the version has lines for that.
        reach: how far it goes.
    """

    name: str
    migrated: bool = True
    level: str | None = None
    processes: int = 1
    batch_factor: int = 1
    loss_scale: float | None = None
    half_type: str | None = None
    plain_amp: bool = False
    quantizes: bool = False
    reach: Reach = "whole"


def planned(asked: Asked) -> Iterator[Planned]:
    """Yield the runs that are made in any case, in the order in which they are made.

    :data:`ORIGINAL_MERGED`, :data:`ORIGINAL_TOGETHER` and :data:`PLAIN_AMP_FP16` depend on what the others give, and
    :data:`O1_FP16` is left out where the type of all runs is float16 already. It is made besides bfloat16, on a CPU
    too: what leaves the range of float16, and what a scaler that is used wrongly does, no run in bfloat16 shows. It
    takes one run of a part; its own reference is only made where it has something to tell.
    """
    in_half = asked.precision in ("migrated", "unknown")
    yield Planned(ORIGINAL, migrated=False)
    yield Planned(ORIGINAL_AGAIN, migrated=False, reach="part")
    yield Planned(O0, level="O0")
    if in_half:
        yield Planned(O0_SCALED, level="O0", loss_scale=LOSS_SCALE, reach="part")
        if set(asked.levels) - {"O0"}:
            yield Planned(PLAIN_AMP, migrated=False, plain_amp=True, reach="part")
        for level in asked.levels:
            if level != "O0":
                yield Planned(level, level=level, reach="part")
            if level == "O1":
                yield Planned(O1_FP16, level=level, half_type="fp16", reach="part")
    if asked.processes > 1:
        yield Planned(O0_TOGETHER, level="O0", processes=asked.processes)
        if in_half and "O1" in asked.levels:
            yield Planned(O1_TOGETHER, level="O1", processes=asked.processes, reach="part")
    if asked.int8:
        yield Planned(INT8, level="O0", quantizes=True, reach="end")


def is_wanted(planned: Planned, asked: Asked, half_type: str | None, made: Mapping[str, Trace]) -> bool:
    """Whether a run in a type that it names says more than those that were made.

    A version that does without the runtime and names bfloat16 itself has no scaler, and needs none.

    Args:
        planned: the run.
        asked: what was asked for.
        half_type: that of all runs that name none.
        made: the runs before it.
    """
    if planned.half_type == half_type or (asked.half_types and planned.half_type not in asked.half_types):
        return False
    if asked.types is not None:
        return planned.half_type in asked.types
    before = made.get(planned.level or "")
    if not asked.native or before is None or not before.ranks:
        return True
    return bool({"in_fp16", "grad_scaler"} & set(before.ranks[0].events))


def original_again() -> Planned:
    """The original once more to its end, where a part did not tell whether it repeats itself."""
    return Planned(ORIGINAL_AGAIN, migrated=False)


def plain_amp_in_fp16() -> Planned:
    """The original under torch's own autocast in float16."""
    return Planned(PLAIN_AMP_FP16, migrated=False, plain_amp=True, half_type="fp16", reach="part")


def original_together(processes: int) -> Planned:
    """The original in so many processes."""
    return Planned(ORIGINAL_TOGETHER, migrated=False, processes=processes)


def original_merged(processes: int) -> Planned:
    """The original with the batches of so many processes made one."""
    return Planned(ORIGINAL_MERGED, migrated=False, batch_factor=processes, reach="part")
