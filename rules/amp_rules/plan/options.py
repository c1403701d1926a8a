"""What the user asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OptLevel = Literal["O0", "O1", "O2", "O3"]
Dtype = Literal["auto", "fp16", "bf16"]
ApexMode = Literal["auto", "idiom", "compat"]
Target = Literal["runtime", "torch"]
Quantization = Literal["dynamic", "static", "qat"]

OPT_LEVELS: tuple[OptLevel, ...] = ("O0", "O1", "O2", "O3")
HALVED: frozenset[OptLevel] = frozenset({"O2", "O3"})
"""Levels at which models are half, and given their inputs in half."""
DTYPES: tuple[Dtype, ...] = ("auto", "fp16", "bf16")
TARGETS: tuple[Target, ...] = ("runtime", "torch")
QUANTIZATIONS: tuple[Quantization, ...] = ("dynamic", "static", "qat")
APEX_MODES: tuple[ApexMode, ...] = ("auto", "idiom", "compat")


@dataclass(frozen=True)
class Options:
    """The options of one migration.

    Attributes:
        opt_level: the level that ``amp.init`` is given, named as in Apex.
        ddp: also migrate to several processes.
        sync_bn: with ``ddp``, synchronise batch norm over the processes.
        fused: use the runtime's fused optimizers.
        dtype: the half type; ``auto`` lets the runtime choose by device.
        loss_scale: ``"dynamic"`` or a fixed scale.
        apex: how scripts for NVIDIA Apex are migrated: ``idiom`` rewrites them like any other, ``compat`` changes their
            imports to the runtime's drop-in, ``auto`` takes the first where the whole project is understood.
        modernize: also replace what a current PyTorch no longer has; None for scripts that use NVIDIA Apex alone, which
            are as old.
        select: codes of rewrites, or their beginnings, that are wanted; empty for all.
        ignore: codes of rewrites, or their beginnings, that are not wanted.
        switch: choose the level by an option of the script's own, where it has a parser.
        target: what migrated scripts use: the runtime, or plain PyTorch, see :mod:`amp_rules.plain_torch`.
        shard: with ``ddp``, share the parameters, gradients and optimizer states of the models out over the processes.
        shard_eval: with ``ddp``, share evaluations out where that gives what one process would find.
        shard_embeddings: with ``ddp``, share the rows of embedding tables with so many rows or more out over the
            processes; None for none.
        quantize: make the trained model int8, in one of three ways; None for none.
    """

    opt_level: OptLevel = "O1"
    ddp: bool = False
    sync_bn: bool = True
    fused: bool = True
    dtype: Dtype = "auto"
    loss_scale: float | Literal["dynamic"] = "dynamic"
    apex: ApexMode = "auto"
    modernize: bool | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    target: Target = "runtime"
    switch: bool = False
    shard: bool = False
    shard_eval: bool = False
    shard_embeddings: int | None = None
    quantize: Quantization | None = None
