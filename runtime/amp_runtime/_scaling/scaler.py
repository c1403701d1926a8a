"""The process-wide loss scaler, ``amp.scaler``."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from amp_runtime._core.context import context
from amp_runtime._core.models import name_of, prepared_parameters
from amp_runtime._distributed import averaging
from amp_runtime._distributed.group import flag_device, warn_of_training_alone
from amp_runtime._precision import masters

_log = logging.getLogger("amp_runtime")

_INIT_SCALE = 2.0**16
_LARGEST_SCALE = 2.0**126  # a larger one would overflow float32


class GradientOverflowError(RuntimeError):
    """Too many steps in a row were skipped, because gradients were infinite or NaN."""


@dataclass
class _Record:
    """What the scaler knows about one optimizer.

    Attributes:
        true_valued: the gradients that exist now are not multiplied by the scale.
        ready: they have been averaged, unscaled and checked since the last step.
        found: 1.0 if one of them was not finite on any rank; a float32 scalar tensor.
        losses: the number of losses scaled when they were last averaged.
        stamps: their identity and version after the last step.
    """

    true_valued: bool
    ready: bool = False
    found: torch.Tensor | None = None
    losses: int = -1
    stamps: tuple[tuple[int, int], ...] = ()


class Scaler:
    """Scales losses so that float16 gradients do not vanish, and skips the steps in which they overflow.

    The interface is ``torch.amp.GradScaler``'s. It scales only under float16: at O0, in bfloat16 and before
    ``amp.init`` the loss is returned as it is and ``step`` is the optimizer's own. What differs from torch:

    - all ranks agree on a skip, so their scales and parameters stay equal;
    - the scale never falls below ``min_scale``, and ``max_skips`` skips in a row raise
      :class:`GradientOverflowError` naming the parameters;
    - a changed scale takes effect with the next ``scale``, so optimizers that share a backward pass may
      each be followed by an ``update``;
    - gradients may be kept over a step or a clipping and accumulated further: they are scaled back first;
    - an optimizer without gradients is stepped, ``update`` without a step does nothing, a second ``unscale_``
      before
      the step does nothing, and an optimizer may step several times before one ``update``;
    - gradients of models prepared with ``delay_allreduce=True`` are averaged over the processes here, also
      where
      nothing is scaled.

    Every rank must call ``step`` for the same optimizers in the same order.

    Attributes:
        growth_factor: what the scale is multiplied by after ``growth_interval`` good steps.
        backoff_factor: what it is multiplied by after a skipped one.
        growth_interval: the number of good steps in a row before it grows.
        min_scale: the scale's floor.
        max_skips: how many skips in a row are an error.
        skipped_steps: how many optimizer steps were skipped so far.
    """

    def __init__(self) -> None:
        self.growth_factor = 2.0
        self.backoff_factor = 0.5
        self.growth_interval = 2000
        self.min_scale = 2.0**-14
        self.max_skips = 200
        self.restart()

    def restart(self) -> None:
        """Forgets every optimizer and begins again with the first scale; ``amp.init`` does this."""
        self._scale = _INIT_SCALE if context.loss_scale == "dynamic" else float(context.loss_scale)
        self._applied = self._scale
        self._checked_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._growth_tracker = 0
        self._losses = 0
        self._checked = False
        self._overflowed = False
        self._skips_in_a_row = 0
        self.skipped_steps = 0
        self._records: weakref.WeakKeyDictionary[Any, _Record] = weakref.WeakKeyDictionary()

    def is_enabled(self) -> bool:
        """Whether losses are scaled: at O1 to O3 in float16."""
        return context.mixed and context.half_dtype() is torch.float16

    def scale(self, outputs: Any) -> Any:
        """Multiplies a loss by the scale; returns the same object where nothing is scaled.

        Args:
            outputs: a floating tensor, or a list, tuple or other iterable of them. Half losses become
                float32, because the scaled value does not fit in them.

        Raises:
            TypeError: something else was given.
        """
        self._losses += 1
        if not self.is_enabled():
            return outputs
        changed, self._applied = self._scale / self._applied, self._scale
        for optimizer, record in list(self._records.items()):
            if not record.true_valued:
                if changed != 1.0:  # gradients that wait for their step join those of the new scale
                    _multiply_gradients(optimizer, changed)
            else:  # gradients kept from before join the scaled ones of the coming backward
                _multiply_gradients(optimizer, self._scale)
                record.true_valued = False
                record.ready = False
        return self._scaled(outputs)

    def _scaled(self, outputs: Any) -> Any:
        if isinstance(outputs, torch.Tensor):
            wide = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
            return wide * self._scale
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self._scaled(output) for output in outputs)
        if isinstance(outputs, Iterable) and not isinstance(outputs, (str, bytes)):
            return map(self._scaled, outputs)
        raise TypeError(f"amp.scaler.scale got {outputs!r}; allowed: a tensor, or an iterable of tensors")

    def unscale_(self, optimizer: Any) -> None:
        """Gives the optimizer's gradients their true values, to clip or inspect them before ``step``.

        Args:
            optimizer: the optimizer whose gradients are complete.
        """
        record = self._record(optimizer)
        if not record.ready:
            self._make_ready(optimizer, record)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Steps the optimizer, unless a gradient is infinite or NaN on any rank.

        Args:
            optimizer: a torch optimizer, or an object around one that has ``step`` and holds it as
                ``optimizer``.
            args: passed on to ``optimizer.step``.
            kwargs: passed on to ``optimizer.step``.

        Returns:
            What ``optimizer.step`` returned, or ``None`` for a skipped step.

        Raises:
            RuntimeError: a closure was given while losses are scaled or gradients are averaged here; or, with
                several processes, the optimizer holds a parameter of no prepared model.
        """
        inner = _inner_optimizer(optimizer)
        warn_of_training_alone()
        if context.distributed and inner not in self._checked_optimizers:
            _require_prepared(inner)
            self._checked_optimizers.add(inner)
        scaling = self.is_enabled()
        delayed = averaging.delayed(_parameters(inner)) if context.distributed else []
        mastered = context.mixed and masters.has_masters(inner)
        if not (scaling or delayed or mastered):
            return optimizer.step(*args, **kwargs)
        if args or kwargs:
            reason = "losses are scaled (float16)" if scaling else "gradients are averaged or copied at the step"
            raise RuntimeError(
                f"amp.scaler.step got arguments for {type(optimizer).__name__}.step, a closure for "
                f"instance, while {reason}. A closure cannot be checked for overflow: use dtype='bf16' or "
                "AMP_OPT_LEVEL=O0, and no delay_allreduce"
            )
        record = self._record(optimizer)
        if not record.ready:
            self._make_ready(optimizer, record)
        record.ready = False
        if self._overflow_in(record):
            self.skipped_steps += 1
            # The scheduler would otherwise warn that it was stepped before the optimizer.
            inner._opt_called = True  # type: ignore[attr-defined]
            _log.info("step skipped: a gradient is not finite at loss scale %g", self._scale)
            result = None
        elif mastered:
            with masters.exchanged(inner):
                result = optimizer.step()
        else:
            result = optimizer.step()
        record.losses = self._losses
        record.stamps = _stamps(delayed)
        return result

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Adjusts the scale after the step of an iteration; does nothing if no gradient was checked since.

        Args:
            new_scale: a scale to use from here on instead, as a number or a tensor of one element.

        Raises:
            GradientOverflowError: ``max_skips`` steps in a row were skipped.
            ValueError: ``new_scale`` is not positive and finite.
        """
        if not self.is_enabled():
            return
        for record in self._records.values():
            if record.ready:  # unscaled and checked, but the script chose not to step
                self._overflow_in(record)
                record.ready = False
        if new_scale is not None:
            value = float(new_scale)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"amp.scaler.update got new_scale={new_scale!r}; allowed: a positive number")
            self._scale = value
        elif self._checked:
            self._adjust()
        self._checked = self._overflowed = False

    def _adjust(self) -> None:
        dynamic = context.loss_scale == "dynamic"
        if self._overflowed:
            self._skips_in_a_row += 1
            self._growth_tracker = 0
            if self._skips_in_a_row >= self.max_skips:
                raise GradientOverflowError(self._blame())
            if dynamic:
                self._scale = max(self._scale * self.backoff_factor, self.min_scale)
            return
        self._skips_in_a_row = 0
        self._growth_tracker += 1
        if dynamic and self._growth_tracker >= self.growth_interval:
            self._growth_tracker = 0
            self._scale = min(self._scale * self.growth_factor, _LARGEST_SCALE)

    def _blame(self) -> str:
        names = []
        for optimizer in self._records:
            for index, parameter in enumerate(_parameters(_inner_optimizer(optimizer))):
                if parameter.grad is not None and not _is_finite(parameter.grad):
                    names.append(name_of(parameter) or f"parameter {index} of {type(optimizer).__name__}")
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        where = f"Not finite now: {shown}. " if names else ""
        return (
            f"{self._skips_in_a_row} steps in a row were skipped because gradients were infinite or NaN; the "
            f"loss scale is {self._scale:g}. {where}The loss is probably NaN itself: run with "
            "AMP_OPT_LEVEL=O0 to see whether it is so in float32 too, and put the part that overflows under "
            "amp.autocast(enabled=False)"
        )

    def get_scale(self) -> float:
        """The current scale; 1.0 where nothing is scaled."""
        return self._scale if self.is_enabled() else 1.0

    def get_growth_factor(self) -> float:
        """What the scale is multiplied by after ``growth_interval`` good steps."""
        return self.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Changes the growth factor."""
        self.growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """What the scale is multiplied by after a skipped step."""
        return self.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Changes the backoff factor."""
        self.backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """The number of good steps in a row before the scale grows."""
        return self.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Changes the growth interval."""
        self.growth_interval = new_interval

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, with the keys of ``torch.amp.GradScaler``.

        Empty where nothing is scaled.
        """
        if not self.is_enabled():
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state of :meth:`state_dict` or of ``torch.amp.GradScaler``.

        An empty state, saved at O0 or in bfloat16, changes nothing; neither does any where nothing is scaled.
        """
        if not self.is_enabled() or not state_dict:
            return
        self._scale = float(state_dict["scale"])
        self.growth_factor = float(state_dict["growth_factor"])
        self.backoff_factor = float(state_dict["backoff_factor"])
        self.growth_interval = int(state_dict["growth_interval"])
        self._growth_tracker = int(state_dict["_growth_tracker"])

    def _record(self, optimizer: Any) -> _Record:
        record = self._records.get(optimizer)
        if record is None:
            # Before the first scaled loss all gradients have their true values.
            record = _Record(true_valued=self._losses == 0 or not self.is_enabled())
            self._records[optimizer] = record
        return record

    def _make_ready(self, optimizer: Any, record: _Record) -> None:
        """Averages delayed gradients, unscales, and looks for infinities and NaN on all ranks."""
        inner = _inner_optimizer(optimizer)
        delayed = averaging.delayed(_parameters(inner))
        if delayed and (record.losses != self._losses or record.stamps != _stamps(delayed)):
            averaging.average_gradients(delayed)
        if self.is_enabled():
            inverse = 1.0 if record.true_valued else 1.0 / self._applied
            record.found = _unscale(inner, inverse)
            if context.distributed:
                record.found = record.found.to(flag_device(record.found.device))
                dist.all_reduce(record.found, dist.ReduceOp.MAX)
        record.true_valued = True
        record.ready = True

    def _overflow_in(self, record: _Record) -> bool:
        if record.found is None:
            return False
        self._checked = True
        overflowed = bool(record.found.item())
        self._overflowed |= overflowed
        record.found = None
        return overflowed


def _inner_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The torch optimizer in an object like ``NoamOpt``, or the object itself."""
    seen = optimizer
    for _ in range(3):
        if hasattr(seen, "param_groups"):
            inner: torch.optim.Optimizer = seen
            return inner
        seen = next((getattr(seen, n) for n in ("optimizer", "_optimizer", "optim") if hasattr(seen, n)), None)
    raise TypeError(
        f"amp.scaler got {optimizer!r} as an optimizer; allowed: a torch optimizer, or an object that holds "
        "one as its attribute `optimizer`"
    )


def _require_prepared(optimizer: torch.optim.Optimizer) -> None:
    """Refuses parameters whose gradients nothing averages: the ranks would drift apart in silence."""
    known = prepared_parameters()
    for index, parameter in enumerate(_parameters(optimizer)):
        if parameter.requires_grad and id(parameter) not in known:
            raise RuntimeError(
                f"amp.scaler.step got a {type(optimizer).__name__} whose parameter {index}, of shape "
                f"{tuple(parameter.shape)}, belongs to no prepared model: its gradients would differ on each "
                "rank. Pass the module that holds it to amp.prepare_model"
            )


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _stamps(parameters: list[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    return tuple((0, 0) if p.grad is None else (id(p.grad), p.grad._version) for p in parameters)


def _values(gradient: torch.Tensor) -> torch.Tensor:
    """The numbers in a gradient as a real, dense tensor that shares its memory."""
    dense = gradient._values() if gradient.is_sparse else gradient
    return torch.view_as_real(dense) if dense.is_complex() else dense


def _is_finite(gradient: torch.Tensor) -> bool:
    return bool(torch.isfinite(_values(gradient)).all())


def _multiply_gradients(optimizer: Any, factor: float) -> None:
    inner = _inner_optimizer(optimizer)
    with torch.no_grad():
        gradients = [_values(p.grad) for p in _parameters(inner) if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, factor)


def _unscale(optimizer: torch.optim.Optimizer, inverse: float) -> torch.Tensor:
    """Multiplies the gradients by ``inverse`` in place.

    Returns 1.0 if one is not finite, as a float32 scalar.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}

    def add(gradient: torch.Tensor) -> None:
        values = _values(gradient)
        groups.setdefault((values.device, values.dtype), []).append(values)

    with torch.no_grad():
        for _, master in masters.take_gradients(optimizer):
            if master.grad is not None:
                add(master.grad)
        for parameter in _parameters(optimizer):
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse and not parameter.grad.is_coalesced():
                parameter.grad = parameter.grad.coalesce()  # repeated indices may only overflow once summed
            add(parameter.grad)
        found: list[torch.Tensor] = []
        for (device, _), gradients in groups.items():
            flag = torch.zeros((), dtype=torch.float32, device=device)
            factor = torch.full((), inverse, dtype=torch.float32, device=device)
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, flag, factor)
            found.append(flag)
    masters.mark_gradients(optimizer)
    if not found:
        return torch.zeros((), dtype=torch.float32)
    return found[0] if len(found) == 1 else torch.stack([flag.to(found[0].device) for flag in found]).amax()


scaler = Scaler()
"""The one scaler of this process."""
