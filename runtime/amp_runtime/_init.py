"""``amp.init`` and its undoing."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterable
from typing import Any

import torch

from amp_runtime._core import capabilities, models, rows
from amp_runtime._core.context import PARALLELS, SHARDED, CastPolicy, DtypeName, OptLevel, Parallel, context
from amp_runtime._core.numpy import convert_bfloat16
from amp_runtime._data import loader, streams
from amp_runtime._distributed import averaging, buffers, group, shadow, sharding
from amp_runtime._noticing import setting, start
from amp_runtime._precision import (
    half_models,
    lacking,
    masters,
    optimizer_state,
    properties,
    recompute,
    registered,
    replaced,
)
from amp_runtime._precision.kept import keeping, remember
from amp_runtime._quantizing import library
from amp_runtime._scaling.scaler import scaler

_BACKENDS = ("gloo", "nccl")
_registered = False


@keeping
def init(
    opt_level: OptLevel = "O1",
    *,
    override: OptLevel | None = None,
    ddp: bool = False,
    parallel: Parallel | None = None,
    enabled: bool = True,
    dtype: DtypeName | torch.dtype = "auto",
    loss_scale: float | str | None = "dynamic",
    init_scale: float = 2.0**16,
    min_scale: float | None = None,
    max_scale: float = 2.0**24,
    growth_interval: int = 2000,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | str | None = None,
    cast_model_outputs: torch.dtype | str | None = None,
    num_losses: int = 1,
    cast_policy: CastPolicy | None = None,
    custom_white_list: Iterable[str] = (),
    custom_black_list: Iterable[str] = (),
    combine_grad: bool = False,
    sync_bn: bool = True,
    backend: str | None = None,
    quantize: str | None = None,
    verbose: bool = False,
) -> None:
    """Turns mixed precision on, and joins the other processes.

    Call it on the script's main path, after its arguments are read and before models and loaders are made.

    Alone, it draws no random number, and touches one thing outside this package: from O1, ``Tensor.numpy`` and
    ``numpy.asarray(tensor)`` give a float32 copy of a bfloat16 tensor, for which torch raises a ``TypeError``.

    With ``ddp`` under torchrun it makes the process group (NCCL on CUDA, gloo otherwise), takes this rank's
    GPU, copies rank 0's random state to the others so that splits and initial weights agree, and on the other
    ranks silences ``print`` (``print(..., force=True)`` still prints), ``sys.stdout``, and logging below WARNING.
    What is written to standard error is shown, a warning that several ranks give once. The group is destroyed when
    the process ends; a rank that an error ends waits for no other.

    multiprocessing may read the script again in a worker that it spawns, as ``__mp_main__``: for a loader, say.
    A call with ``ddp=True`` that runs then does nothing at all, since the worker is no rank. In a function that
    the worker executes afterwards, such as one started with ``torch.multiprocessing.spawn`` to train, it works
    as ever, and so does ``ddp=False`` everywhere.

    A further call keeps what earlier ones gave, up to :func:`amp.shutdown`: only the arguments that it gives itself
    change. What it keeps and its level has no use for, such as ``keep_batchnorm_fp32`` at O1, waits for one that has; a
    kept limit of the scale or name in a list gives way to what this call gives. If nothing changes it does nothing;
    else it changes precision for the models prepared from then on and restarts the loss scale. The process group
    stays.

    The levels and the properties that an argument can change, ``None`` being the level's own:

    ====================  =====  ===========  ==================  ==========
    property              O0     O1           O2                  O3
    ====================  =====  ===========  ==================  ==========
    weights               fp32   fp32         half                half
    operations            fp32   by autocast  half                half
    keep_batchnorm_fp32   --     --           True                False
    master_weights        --     --           True                False
    cast_model_outputs    --     half: fp32   half: fp32          half: fp32
    ====================  =====  ===========  ==================  ==========

    Numbers and flags may be strings, as argparse passes them on: ``loss_scale="128.0"``,
    ``keep_batchnorm_fp32="True"``. Where ``override``, ``AMP_OPT_LEVEL`` or ``enabled=False`` chose the level,
    arguments that it has no use for are ignored; otherwise ``keep_batchnorm_fp32`` and ``master_weights`` are errors
    at O1.

    Args:
        opt_level: O0 plain FP32, O1 autocast, O2 half model with FP32 master weights, O3 half throughout. The
            environment variable ``AMP_OPT_LEVEL`` overrides it, and ``enabled``.
        override: a level that overrides both, and ``AMP_OPT_LEVEL``; ``None`` overrides nothing. It is for an option of
            the command line whose default is ``None``: ``override=args.amp``.
        ddp: take part in a torchrun launch. Alone it changes nothing.
        parallel: the same, and how models are prepared then: ``"ddp"``, whole on every rank, or ``"fsdp"``, sharded
            over the ranks by torch's FSDP2; see ``shard`` in :func:`prepare_model`. ``"hsdp"`` shards over the
            processes of each machine alone, whose copies are averaged: weights never go from machine to machine.
        enabled: ``False`` is O0, whatever ``opt_level`` says.
        dtype: the half type, by name or as a ``torch.dtype``. ``auto`` is bfloat16 on the CPU and on GPUs that
            compute in it, float16 otherwise; the environment variable ``AMP_DTYPE`` names another type for ``auto``.
            A warning tells where a CPU has no arithmetic for bfloat16, and will be slow.
            Operations that the device does not have in this type run in float32, on all ranks if one lacks them, and a
            warning names them.
        loss_scale: ``"dynamic"`` (or ``None``), or a fixed scale such as 128.0. Losses are scaled for float16
            only. The environment variable ``AMP_LOSS_SCALE`` overrides it, and has losses scaled at every level and
            in every type: to check that a script treats scaled gradients rightly.
        init_scale: the dynamic scale to begin with, clamped to the two below.
        min_scale: the dynamic scale never falls below it. ``None`` is a floor that lets gradients of any
            size through.
        max_scale: the dynamic scale never grows above it.
        growth_interval: the number of good steps in a row after which the dynamic scale doubles.
        keep_batchnorm_fp32: batch norm keeps float32 weights and statistics in a half model (O2, O3).
        master_weights: half parameters get float32 masters, which the optimizer updates (O2, O3).
        cast_model_outputs: a floating ``torch.dtype``, or ``"fp32"``, ``"fp16"``, ``"bf16"``, ``"fp64"``: every
            floating output of a prepared model gets it, at every level.
        num_losses: the number of losses that have a scale each, chosen by ``loss_id`` in ``amp.scaler.scale``.
        cast_policy: which operations ``amp.autocast`` casts, on every device: ``"torch"`` (the default) those of
            torch's autocast on CUDA, ``"apex"`` those of Apex's O1.
        custom_white_list: names of operations to run in half under ``amp.autocast``, as ``("softmax",)``.
        custom_black_list: names of operations to run in float32 there.
        combine_grad: keep gradients in flat buffers for unscaling and averaging.
        sync_bn: batch norm computes its statistics over all processes.
        backend: ``"gloo"`` or ``"nccl"`` instead of the one that fits the devices.
        quantize: the kind that the script calls :func:`quantize` with when it has trained: what that needs is asked for
            now. It has no other effect.
        verbose: on the main process, print one line about what was chosen, and the table of all properties to
            stderr. Never at O0.

    Raises:
        ValueError: an argument, ``AMP_OPT_LEVEL``, ``AMP_DTYPE``, ``AMP_LOSS_SCALE`` or ``AMP_CHECK`` is not one of the
            allowed values, or contradicts the level; shards are asked for at O3, with ``combine_grad=True`` or without
            master weights; or a custom list names no operation of torch.
        ImportError: ``quantize`` is given, and torchao cannot be imported.

    Source:
        The levels are those of Apex: https://nvidia.github.io/apex/amp.html#opt-levels-and-properties
    """
    ddp, sync_bn, verbose = _truth("ddp", ddp), _truth("sync_bn", sync_bn), _truth("verbose", verbose)
    if parallel is not None and parallel not in PARALLELS:
        raise ValueError(f"amp.init got parallel={parallel!r}; allowed: None, {', '.join(map(repr, PARALLELS))}")
    ddp = ddp or parallel is not None
    reread = _is_main_read_again()
    if ddp and reread:
        return
    if quantize is not None:
        library.check(quantize)
    chosen = properties.resolve(
        opt_level,
        override=override,
        enabled=enabled,
        dtype=dtype,
        loss_scale=loss_scale,
        init_scale=init_scale,
        min_scale=min_scale,
        max_scale=max_scale,
        growth_interval=growth_interval,
        keep_batchnorm_fp32=keep_batchnorm_fp32,
        master_weights=master_weights,
        cast_model_outputs=cast_model_outputs,
        num_losses=num_losses,
        cast_policy=cast_policy,
        custom_white_list=custom_white_list,
        custom_black_list=custom_black_list,
        combine_grad=combine_grad,
    )
    if parallel in SHARDED:
        sharding.refuse_settings("amp.init", chosen.opt_level, chosen.master_weights, chosen.combine_grad)
    if chosen.opt_level in ("O2", "O3"):
        half_models.require_here()
    scaler.agrees_always = setting.setting() == "every"
    if backend is not None and backend not in _BACKENDS:
        raise ValueError(f"amp.init got backend={backend!r}; allowed: None, {', '.join(map(repr, _BACKENDS))}")
    if properties.put_in_force(chosen):
        scaler.restart()
    convert_bfloat16(context.mixed)
    replaced.follow(context.mixed)
    registered.follow()
    context.parallel = parallel
    context.sync_bn = sync_bn
    context.verbose = verbose
    context.initialised = True
    remember()
    if ddp:
        group.join_group(backend)
        _shut_down_at_exit()
    start.begin()
    if verbose and context.mixed and context.rank == 0 and not reread:
        half = str(context.half_dtype()).removeprefix("torch.")
        print(f"amp: {chosen.opt_level} with {half} on {context.device_type()}, {context.world_size} process(es)")
        print(chosen.table(), file=sys.stderr)


def _truth(name: str, value: Any) -> bool:
    return bool(properties.flag(name, value) if isinstance(value, str) else value)


def opt_level() -> OptLevel:
    """The level in force: ``"O0"`` before ``amp.init``."""
    return context.opt_level


def shutdown() -> None:
    """Destroys the process group that ``amp.init`` made, gives ``print`` and output back, and goes back to O0.

    It waits for no other process. It runs by itself when the process ends.
    """
    start.end()
    rows.forget_all()
    group.leave_group()
    context.reset()
    convert_bfloat16(False)
    registered.forget()
    replaced.follow(False)
    recompute.leave()
    optimizer_state.stop_watching_optimizers()
    masters.stop_following()
    models.forget_all()
    capabilities.forget_agreement()
    lacking.forget_notes()
    loader.count_anew()
    streams.forget_streams()
    shadow.begin_round(None)
    averaging.forget_all()
    buffers.stop_watching()
    sharding.forget_all()
    scaler.reset()


def _is_main_read_again() -> bool:
    """Whether multiprocessing is reading the main script for a worker just now.

    The stack tells, whatever the start method and however deep the call; ``multiprocessing.parent_process()``
    is not set yet, and is later also set in the functions that a worker executes.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__mp_main__":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _shut_down_at_exit() -> None:
    global _registered
    if context.distributed and not _registered:
        atexit.register(shutdown)
        _registered = True
