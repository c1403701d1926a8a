"""The state that ``amp.initialize`` leaves behind, under the names that scripts reach into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
import torch.distributed as dist

from amp_runtime.apex.amp.scaler import LossScaler


class Casts(Protocol):
    """What switches the casts of O1 on and off: a handle of :mod:`amp_runtime.apex.amp.handle`."""

    # A protocol, because the handles' own module needs this one: their casts look up here whether they are on.

    allow_banned: bool

    def is_active(self) -> bool:
        """Whether casts are on in this thread."""

    def _disable_casts(self) -> AbstractContextManager[None]: ...


class AmpState:
    """What ``amp.initialize`` decided, for the whole process; the one instance is ``amp._amp_state``.

    ``opt_properties``, ``loss_scalers``, ``min_loss_scale`` and ``max_loss_scale`` exist after ``initialize``
    only, and ``handle`` after O1 or ``amp.init``, as in Apex: scripts ask with ``hasattr``.

    Attributes:
        opt_properties: the properties in force, see :class:`amp_runtime.apex.amp.frontend.Properties`.
        loss_scalers: one :class:`LossScaler` for each loss.
        handle: what switches the casts of O1.
        min_loss_scale: the floor that ``initialize`` was given.
        max_loss_scale: the ceiling.
        verbosity: 0 prints nothing, 1 the properties and skipped steps.
        hard_override: refused combinations of arguments become warnings.
        allow_incoming_model_not_fp32: models need not be float32 in ``initialize``.
    """

    opt_properties: Any
    loss_scalers: list[LossScaler]
    handle: Casts
    min_loss_scale: float | None
    max_loss_scale: float

    def __init__(self) -> None:
        self.hard_override = False
        self.allow_incoming_model_not_fp32 = False
        self.verbosity = 1

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"amp._amp_state has no {name!r}. amp.initialize(model, optimizer, opt_level=...) with enabled=True makes "
            "opt_properties and loss_scalers, and at O1 the handle"
        )


_amp_state = AmpState()


def warn_or_err(message: str) -> None:
    """Raises ``RuntimeError``, or prints ``message`` as a warning under ``_amp_state.hard_override``."""
    if not _amp_state.hard_override:
        raise RuntimeError(
            message + "  If you're sure you know what you're doing, set amp._amp_state.hard_override = True before."
        )
    print("Warning:  " + message)


def maybe_print(message: str, rank0: bool = False) -> None:
    """Prints ``message`` unless ``verbosity`` is 0.

    Args:
        message: the text.
        rank0: on rank 0 of several processes only.
    """
    if _amp_state.verbosity <= 0:
        return
    if rank0 and dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
        return
    print(message)


def master_params(optimizer: Any) -> Iterator[torch.Tensor]:
    """Every parameter that ``optimizer`` steps: at O2 the float32 masters of the half weights.

    Args:
        optimizer: any object with ``param_groups``, prepared by ``amp.initialize`` or not.

    Yields:
        The tensors in the optimizer's groups, in order. After ``scale_loss`` their ``.grad`` hold true,
        unscaled values, so that they can be clipped.
    """
    for group in optimizer.param_groups:
        yield from group["params"]
