"""``amp.scale_loss``, ``amp.disable_casts`` and the handles that ``amp.init`` returns."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from amp_runtime._core.context import context
from amp_runtime._scaling.skips import GradientOverflowError
from amp_runtime.apex import _replicas
from amp_runtime.apex.amp import _patching
from amp_runtime.apex.amp._amp_state import _amp_state
from amp_runtime.apex.amp._initialize import half_dtype
from amp_runtime.apex.amp._optim_wrapper import OptimWrapper
from amp_runtime.apex.amp.scaler import LossScaler


@contextmanager
def scale_loss(
    loss: torch.Tensor,
    optimizers: Any,
    loss_id: int = 0,
    model: Any = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[torch.Tensor]:
    """Scales a loss for its backward pass; on exit the optimizers' gradients have their true values.

    On exit gradients are divided by the scale, checked, and added to what was accumulated before; then the scale
    adapts, so it counts backward passes and not steps. If a gradient was infinite or NaN, on any rank that trains the
    same model, the next ``step`` of each of the optimizers does nothing but print it, under a fixed scale too.

    Args:
        loss: a scalar; it becomes float32.
        optimizers: those whose gradients this backward pass makes; one, or several of them.
        loss_id: which of the ``num_losses`` scales of ``amp.initialize`` it has.
        model: not used, as in Apex.
        delay_unscale: leave the gradients scaled, because more backward passes come before the step. The last of them
            must be without it.
        delay_overflow_check: neither adapt the scale nor skip a step; the script does it.

    Yields:
        The scaled loss; the loss itself where ``amp.initialize`` had ``enabled=False``.

    Raises:
        RuntimeError: ``amp.initialize`` has not run, or not with one of the optimizers.
        IndexError: there is no loss ``loss_id``.
        GradientOverflowError: too many backward passes in a row overflowed; it names parameters.
    """
    if "opt_properties" not in vars(_amp_state):
        raise RuntimeError(
            "Invoked 'with amp.scale_loss`, but internal Amp state has not been initialized.  model, optimizer = "
            "amp.initialize(model, optimizer, opt_level=...) must be called before `with amp.scale_loss`."
        )
    properties = _amp_state.opt_properties
    if not properties.enabled:
        yield loss
        return
    several = _as_list(optimizers)
    scaler = _scaler(loss_id)
    # Nothing to divide and no masters to fill. Apex left O3 out here as well; its overflows are looked for.
    fixed_at_one = not scaler.dynamic and scaler.loss_scale() == 1.0 and not properties.master_weights
    if fixed_at_one and properties.opt_level == "O0":
        yield loss.float()
        return
    stashes = [_stash(optimizer) for optimizer in several]
    if not delay_unscale:
        for stash in stashes:
            if not stash.params_have_scaled_gradients:
                stash.prepare(scaler.loss_scale())
    yield loss.float() * scaler.loss_scale()
    if delay_unscale:
        for stash in stashes:
            stash.params_have_scaled_gradients = True
        return
    # What was found counts for this backward pass alone; a delayed one before it has not looked at its gradients.
    scaler.clear_overflow_state()
    for optimizer, stash in zip(several, stashes, strict=True):
        _replicas.average_combined(stash)
        optimizer._post_amp_backward(scaler)
        stash.params_have_scaled_gradients = False
    if delay_overflow_check:
        return
    scaler._found = _replicas.agree(scaler._found, (p for stash in stashes for p in stash.model_params()))
    if _update(scaler, stashes):
        what = "reducing loss scale to" if scaler.dynamic else "at the fixed loss scale"
        message = f"Gradient overflow.  Skipping step, loss scaler {loss_id} {what} {scaler.loss_scale()}"
        for stash in stashes:
            stash.skip_next_step(message)


def _update(scaler: LossScaler, stashes: list[Any]) -> bool:
    try:
        return scaler.update_scale()
    except GradientOverflowError as error:
        if error.location is not None:
            raise
        names = [name for stash in stashes for name in stash.not_finite()]
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise GradientOverflowError(f"{error}. Not finite now: {shown or 'on another rank'}") from None


def _as_list(optimizers: Any) -> list[Any]:
    if hasattr(optimizers, "param_groups") or not isinstance(optimizers, Iterable):
        return [optimizers]
    return list(optimizers)


def _scaler(loss_id: int) -> LossScaler:
    scalers = _amp_state.loss_scalers
    if not 0 <= loss_id < len(scalers):
        raise IndexError(
            f"amp.scale_loss got loss_id={loss_id!r}; allowed: 0 to {len(scalers) - 1}, by num_losses={len(scalers)} "
            "of amp.initialize"
        )
    return scalers[loss_id]


def _stash(optimizer: Any) -> Any:
    if not hasattr(optimizer, "_amp_stash"):
        raise RuntimeError(
            f"amp.scale_loss got a {type(optimizer).__name__} that was not passed through amp.initialize; it must be "
            "among the optimizers given there"
        )
    return optimizer._amp_stash


@contextmanager
def disable_casts() -> Iterator[None]:
    """Turns the casts of O1 off for a block, in this thread; blocks may be nested. Does nothing at other levels."""
    handle = vars(_amp_state).get("handle")
    if handle is None:
        yield
        return
    with handle._disable_casts():
        yield


class AmpHandle:
    """Switches the casts of O1; ``amp.init`` returns it, and ``amp._amp_state.handle`` is it.

    Args:
        loss_scale: the scale for ``wrap_optimizer``: ``"dynamic"`` or a positive number.
        enable_caching: accepted as in Apex. Casts of weights are never kept, so that none is out of date.
        verbose: accepted as in Apex; nothing is printed.
        allow_banned: run ``F.binary_cross_entropy`` in float32 instead of refusing half tensors.
        device_type: the kind of device that trains; by default CUDA where there is one. Tensors on the CPU become half
            only if it is the CPU, as Apex left them alone.
    """

    def __init__(
        self,
        loss_scale: float | Literal["dynamic"] = "dynamic",
        enable_caching: bool = True,
        verbose: bool = False,
        allow_banned: bool = False,
        device_type: str | None = None,
    ) -> None:
        self.allow_banned = allow_banned
        self.verbose = verbose
        kind = device_type or context.device_type()
        self.half_dtype = half_dtype(kind)
        self.casts_cpu = kind == "cpu"
        self._loss_scale = loss_scale
        self._is_active = True
        self._disabled = threading.local()  # a block of one thread leaves the casts of DataParallel's others on

    def is_active(self) -> bool:
        """Whether casts are on in this thread."""
        return self._is_active and not getattr(self._disabled, "depth", 0)

    @contextmanager
    def _disable_casts(self) -> Iterator[None]:
        self._disabled.depth = getattr(self._disabled, "depth", 0) + 1
        try:
            yield
        finally:
            self._disabled.depth -= 1

    @property
    def has_cache(self) -> bool:
        """Whether casts of weights are kept; never."""
        return False

    def _clear_cache(self) -> None:
        """Nothing to clear."""

    def _deactivate(self) -> None:
        """Turns casts off for good and gives torch its functions back."""
        self._is_active = False
        _patching.restore_all()

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, num_loss: int = 1) -> OptimWrapper:
        """An optimizer with ``scale_loss``, in the manner before ``amp.initialize``.

        Args:
            optimizer: the optimizer.
            num_loss: the number of losses, and of backward passes, before each step.
        """
        return OptimWrapper(optimizer, self, num_loss)

    def scale_loss(self, loss: torch.Tensor, optimizer: Any) -> Any:
        """Refuses: gone from Apex since ``amp.initialize``.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "The old Amp API is no longer supported.  Please move to the new API: model, optimizer = "
            "amp.initialize(model, optimizer, opt_level='O1'), then `with amp.scale_loss(loss, optimizer)`. Or call "
            "handle.wrap_optimizer(optimizer), whose scale_loss still works"
        )


class NoOpHandle:
    """What ``amp.init(enabled=False)`` returns: the same methods, which do nothing."""

    allow_banned = False
    has_cache = False
    verbose = False

    def is_active(self) -> bool:
        """``False``."""
        return False

    @contextmanager
    def _disable_casts(self) -> Iterator[None]:
        yield

    def _clear_cache(self) -> None:
        """Nothing to clear."""

    def _deactivate(self) -> None:
        """Nothing to turn off."""

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, num_loss: int = 1) -> OptimWrapper:
        """An optimizer whose ``scale_loss`` yields the loss itself."""
        return OptimWrapper(optimizer, self, num_loss)

    @contextmanager
    def scale_loss(self, loss: torch.Tensor, optimizer: Any) -> Iterator[torch.Tensor]:
        """Yields the loss itself."""
        yield loss
