"""``amp.init`` and its undoing."""

from __future__ import annotations

import atexit
import math
import os
import sys
from typing import Literal

from amp_runtime._core.context import DTYPES, OPT_LEVELS, DtypeName, OptLevel, context
from amp_runtime._core.numpy import convert_bfloat16
from amp_runtime._distributed import group
from amp_runtime._scaling.scaler import scaler

_BACKENDS = ("gloo", "nccl")
_registered = False


def init(
    opt_level: OptLevel = "O1",
    *,
    ddp: bool = False,
    dtype: DtypeName = "auto",
    loss_scale: float | Literal["dynamic"] = "dynamic",
    sync_bn: bool = True,
    backend: str | None = None,
    verbose: bool = False,
) -> None:
    """Turns mixed precision on, and joins the other processes.

    Call it on the script's main path, after its arguments are read and before models and loaders are made.

    Alone, it draws no random number, and touches one thing outside this package: from O1, ``Tensor.numpy`` and
    ``numpy.asarray(tensor)`` give a float32 copy of a bfloat16 tensor, for which torch raises a ``TypeError``.

    With ``ddp`` under torchrun it makes the process group (NCCL on CUDA, gloo otherwise), takes this rank's
    GPU, copies rank 0's random state to the others so that splits and initial weights agree, and on the other
    ranks silences ``print`` to the terminal (``print(..., force=True)`` still prints), ``sys.stdout``, and
    logging below WARNING. The group is destroyed when the process ends.

    multiprocessing may read the script again in a worker that it spawns, as ``__mp_main__``: for a loader, say.
    A call with ``ddp=True`` that runs then does nothing at all, since the worker is no rank. In a function that
    the worker executes afterwards, such as one started with ``torch.multiprocessing.spawn`` to train, it works
    as ever, and so does ``ddp=False`` everywhere.

    A second call with the same settings does nothing. With others, it changes precision for the models
    prepared from then on and restarts the loss scale; the process group stays.

    Args:
        opt_level: O0 plain FP32, O1 autocast, O2 half model with FP32 master weights, O3 half throughout. The
            environment variable ``AMP_OPT_LEVEL`` overrides it.
        ddp: take part in a torchrun launch. Alone it changes nothing.
        dtype: the half type. ``auto`` is bfloat16 on the CPU and on GPUs that compute in it, float16
            otherwise.
        loss_scale: ``"dynamic"``, or a fixed scale. Losses are scaled for float16 only.
        sync_bn: batch norm computes its statistics over all processes.
        backend: ``"gloo"`` or ``"nccl"`` instead of the one that fits the devices.
        verbose: print one line about what was chosen. Never at O0.

    Raises:
        ValueError: an argument or ``AMP_OPT_LEVEL`` is not one of the allowed values.
    """
    reread = _is_main_read_again()
    if ddp and reread:
        return
    level = _level(opt_level)
    if dtype not in DTYPES:
        raise ValueError(f"amp.init got dtype={dtype!r}; allowed: {', '.join(map(repr, DTYPES))}")
    if backend is not None and backend not in _BACKENDS:
        raise ValueError(f"amp.init got backend={backend!r}; allowed: None, {', '.join(map(repr, _BACKENDS))}")
    scale = _loss_scale(loss_scale)
    precision = (level, dtype, scale)
    if precision != (context.opt_level, context.dtype_name, context.loss_scale):
        context.opt_level, context.dtype_name, context.loss_scale = precision
        scaler.restart()
    convert_bfloat16(context.mixed)
    context.sync_bn = sync_bn
    context.verbose = verbose
    context.initialised = True
    if ddp:
        group.join_group(backend)
        _shut_down_at_exit()
    if verbose and context.mixed and context.rank == 0 and not reread:
        half = str(context.half_dtype()).removeprefix("torch.")
        print(f"amp: {level} with {half} on {context.device_type()}, {context.world_size} process(es)")


def opt_level() -> OptLevel:
    """The level in force: ``"O0"`` before ``amp.init``."""
    return context.opt_level


def shutdown() -> None:
    """Destroys the process group that ``amp.init`` made, gives ``print`` and output back, and goes back to O0.

    It waits for no other process. It runs by itself when the process ends.
    """
    group.leave_group()
    context.reset()
    convert_bfloat16(False)
    scaler.restart()


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


def _level(opt_level: str) -> OptLevel:
    text = os.environ.get("AMP_OPT_LEVEL", "").strip()
    source = f"AMP_OPT_LEVEL={text!r} in the environment" if text else f"amp.init got opt_level={opt_level!r}"
    for level in OPT_LEVELS:
        if (text or opt_level) == level:
            return level
    raise ValueError(f"{source}; allowed: {', '.join(map(repr, OPT_LEVELS))} (the letter O, not zero)")


def _loss_scale(loss_scale: float | str) -> float | Literal["dynamic"]:
    if loss_scale == "dynamic":
        return "dynamic"
    if isinstance(loss_scale, (int, float)) and not isinstance(loss_scale, bool):
        value = float(loss_scale)
        if math.isfinite(value) and value > 0:
            return value
    raise ValueError(f"amp.init got loss_scale={loss_scale!r}; allowed: 'dynamic' or a positive number")
