"""The process-wide loss scaler, ``amp.scaler``."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from amp_runtime._core.context import HALF_DTYPES, context
from amp_runtime._core.models import copy_with, prepared_models, prepared_parameters, remember
from amp_runtime._core.registry import IdentityMap, TensorMap
from amp_runtime._distributed import averaging, buffers, passes, shadow, sharding
from amp_runtime._distributed.group import warn_of_training_alone
from amp_runtime._precision import masters
from amp_runtime._scaling.agreement import Ranks
from amp_runtime._scaling.closures import ClosureStep, step_with_closure
from amp_runtime._scaling.combined import CombinedGradients, advise_merging, combined_of
from amp_runtime._scaling.gradients import (
    closure_in,
    gradients_of,
    have_gradients,
    inner_optimizer,
    multiply,
    parameters_of,
)
from amp_runtime._scaling.loose import LooseGradients
from amp_runtime._scaling.loss_scale import FLOOR, LossScale, Unit
from amp_runtime._scaling.on_device import groups_to_fuse, told
from amp_runtime._scaling.overflow import OverflowLocation
from amp_runtime._scaling.penalties import true_gradients
from amp_runtime._scaling.records import Record, stamps, unscale
from amp_runtime._scaling.replaying import replayed
from amp_runtime._scaling.skips import Finding, Skips, strongest
from amp_runtime._scaling.skips import GradientOverflowError as GradientOverflowError
from amp_runtime._scaling.state import load_into, state_of

_log = logging.getLogger("amp_runtime")


class Scaler(torch.amp.GradScaler):
    """Scales losses so that float16 gradients do not vanish, and skips the steps in which they overflow.

    The interface is ``torch.amp.GradScaler``'s. It scales only under float16: at O0, in bfloat16 and before
    ``amp.init`` the loss is returned as it is. ``AMP_LOSS_SCALE=1024`` in the environment has ``amp.init`` scale
    everywhere, by that number. What differs from torch:

    - nobody waits for the device where torch does not: fused optimizers skip on the device, and what was skipped is
      read when somebody asks, or when it may be time for the error below;
    - all ranks skip together, so their scales and parameters stay equal. Gradients that all ranks average have the
      same infinities everywhere, so nothing is sent for it, except at an optimizer's first step and after a scale was
      set or loaded; other gradients are agreed upon at every step. A script that changes averaged gradients on one rank
      alone sets ``process_group``, or runs with ``AMP_CHECK=every``;
    - from O1 a step whose gradients are infinite or NaN is skipped in bfloat16 too, and with a static scale
      (a number; Apex would apply it), so parameters never become NaN. At O0 nothing is checked;
    - the scale never falls below ``min_scale`` nor grows above ``max_scale``, and ``max_skips`` skips in a row raise
      :class:`GradientOverflowError`, which names the first module that overflowed: when one skip is left, the next
      step is observed;
    - ``scale(loss, loss_id=k)`` gives each of ``amp.init(num_losses=)`` losses a scale of its own. They may share
      optimizers: gradients that exist are brought to the unit of the coming loss;
    - a changed scale takes effect with the next ``scale``, so optimizers that share a backward pass may
      each be followed by an ``update``: together these count as one;
    - gradients may be kept over a step or a clipping and accumulated further: they are scaled back first. Those of a
      skipped step are cleared by the next loss, or no later step would be made;
    - the first ``unscale_`` or ``step`` after a loss makes gradients of prepared models that no optimizer holds true,
      too: a norm over the whole model is right where only its head is trained;
    - an optimizer without gradients is stepped, ``update`` without a step does nothing, a second ``unscale_``
      before the step does nothing, and an optimizer may step several times before one ``update``;
    - a closure is accepted: its losses are not scaled, and a step in which it meets an overflow is undone;
    - gradients of models prepared with ``delay_allreduce=True`` are averaged over the processes here, also
      where nothing is scaled.

    A gradient penalty needs the true gradients; ``torch.autograd.grad`` of a scaled loss gives scaled ones::

        grads = torch.autograd.grad(amp.scaler.scale(loss), inputs, create_graph=True)
        penalty = (torch.cat([g.flatten() for g in amp.scaler.unscale_gradients(grads)]).norm() - 1) ** 2
        amp.scaler.scale(loss + penalty).backward()

    Every rank must call ``step`` for the same optimizers in the same order. In a process group of the script's own
    that holds for the optimizers of models that it wrapped in torch's DistributedDataParallel, and only for these are
    skips agreed upon there; ``process_group`` changes that.

    Attributes:
        growth_factor: what the scale is multiplied by after ``growth_interval`` good steps.
        backoff_factor: what it is multiplied by after a skipped one.
        growth_interval: the number of good steps in a row before it grows.
        min_scale: the scale's floor.
        max_scale: the scale's ceiling.
        max_skips: how many skips in a row are an error.
        process_group: the ``torch.distributed`` group whose ranks agree on every skip, ``False`` for none; ``None``,
            the default, is all ranks of ``amp.init(ddp=True)``, and in groups of the script's own those of its DDP
            models.
        agrees_always: whether ranks agree at every step, as ``AMP_CHECK=every`` asks for.
        stepping: whether ``step`` runs just now.
        on_scaled: called with each scaled loss; ``None`` where nobody asks.
        on_unscale: called with each optimizer before its scaled gradients are made true; ``None`` where nobody asks.

    Args:
        enabled: ``False`` makes one that hands everything through, as torch's does.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self.on_scaled: Callable[[torch.Tensor], None] | None = None
        self.on_unscale: Callable[[torch.optim.Optimizer], None] | None = None
        self._skips = Skips()
        self.reset()

    def __reduce__(self) -> Any:
        return _restored, (self._enabled, self.state_dict())

    def reset(self) -> None:
        """Goes back to the state of a new scaler, settings included; ``amp.shutdown`` does this."""
        self.growth_factor = 2.0
        self.backoff_factor = 0.5
        self.max_skips = 200
        self.process_group: Any = None
        self.agrees_always = False
        self.restart()

    def restart(self) -> None:
        """Forgets every optimizer and begins again with the first scale; ``amp.init`` does this."""
        self.growth_interval = context.growth_interval
        self.min_scale = FLOOR if context.min_scale is None else context.min_scale
        self.max_scale = context.max_scale
        self._scales = [self._first_scale() for _ in range(context.num_losses)]
        self._loss_id = 0
        self._last_unit: Unit | None = None
        self._losses = 0
        self._taking_part: set[int] = set()
        # The optimizers, by their records, that an update has counted since the last loss, and what lowered its scale.
        self._updated: set[int] = set()
        self._lowered: dict[int, torch.Tensor] = {}
        self._findings: list[Finding] = []
        self._checked: list[int] = []
        self._charges: list[torch.Tensor] = []
        self._overflow_ranks: Ranks | None = None
        self._set_from_outside = 0
        self._unscaled_early = False
        self._skips.stop_watching()
        self._skips = Skips()
        self._loaded = False
        self._in_closure = False
        self._locating = False
        self._sharing = False
        self._warned_of_closure = False
        self.stepping = False
        self._last: Record | None = None
        self._held_by_none: TensorMap[bool] = TensorMap()
        self._loose = LooseGradients()
        self._records: IdentityMap[torch.optim.Optimizer, Record] = IdentityMap()
        self._known_optimizers: IdentityMap[torch.optim.Optimizer, int] = IdentityMap()

    def _first_scale(self) -> LossScale:
        if context.loss_scale == "dynamic":
            return LossScale(max(min(context.init_scale, self.max_scale), self.min_scale))
        return LossScale(float(context.loss_scale), dynamic=False)

    def is_enabled(self) -> bool:
        """Whether losses are scaled: at O1 to O3 in float16, and everywhere under ``AMP_LOSS_SCALE``."""
        if not self._enabled:
            return False
        return context.scales_always or (context.mixed and context.half_dtype() is torch.float16)

    @property
    def _looks_at_gradients(self) -> bool:
        """Whether gradients are brought to their true values, and checked, before a step."""
        return self._enabled and (context.mixed or context.scales_always)

    @property
    def _unit(self) -> Unit:
        """What the loss that was scaled last was multiplied by."""
        return self._last_unit or self._scales[self._loss_id].unit()

    @property
    def stepped(self) -> bool:
        """Whether the last ``step`` changed parameters, for schedulers and averages of weights.

        True exactly if it was not skipped and there was a gradient, at every level. May wait for the device.
        """
        return self._last is not None and self._last.stepped

    @property
    def skipped_steps(self) -> int:
        """How many optimizer steps were skipped so far. May wait for the device."""
        self._skips.read()
        return self._skips.total

    def scale(self, outputs: Any, loss_id: int = 0) -> Any:
        """Multiplies a loss by its scale; returns the same object where nothing is scaled.

        Args:
            outputs: a floating tensor of any shape, or a list, tuple or other iterable of them. Half losses become
                float32, because the scaled value does not fit in them. A plain number is given back as it is: no loss
                was computed, and ``.backward()`` says so as it does without a scaler.
            loss_id: which of the ``num_losses`` of ``amp.init`` it is, from 0.

        Raises:
            TypeError: something else was given.
            ValueError: there is no such loss.
        """
        self._require_loss(loss_id)
        if self._in_closure or isinstance(outputs, (int, float)):
            return shadow.weigh(outputs)
        if self._skips.observer is not None:
            self._skips.observer.see_loss(outputs)
        outputs = shadow.weigh(outputs)
        self._losses += 1
        if self._unscaled_early:
            self._charge_abandoned()
        if self._updated:
            self._forget_iteration()
        for optimizer, record in self._records.items():
            record.drop_left_over(optimizer)
        if not self.is_enabled():
            for optimizer, record in self._records.items():
                record.reopen(optimizer)
            return outputs
        self._bring_gradients_to(loss_id)
        self._taking_part.add(loss_id)
        return self._scaled(outputs)

    def _forget_iteration(self) -> None:
        """Begins another iteration: the scales have followed the losses of the one before."""
        self._updated.clear()
        self._taking_part.clear()
        self._lowered.clear()

    def _charge_abandoned(self) -> None:
        """Lowers the scale where gradients overflowed, were unscaled, and cleared without a step or an ``update``.

        A script that leaves a step out because the norm is too large would see infinities for ever. The next step is
        left out as well: what was cleared may have been kept elsewhere, to be put together with other gradients. Each
        finding lowers the scale once, however many backward passes come before that step.
        """
        for optimizer, record in self._records.items():
            if record.ready and record.finding and not have_gradients(parameters_of(optimizer)):
                self.update()
                record.abandoned = True

    def _require_loss(self, loss_id: int) -> None:
        if not (isinstance(loss_id, int) and 0 <= loss_id < len(self._scales)):
            raise ValueError(
                f"amp.scaler got loss_id={loss_id!r}; allowed: 0 to {len(self._scales) - 1}, since amp.init got "
                f"num_losses={len(self._scales)}"
            )

    def _bring_gradients_to(self, loss_id: int) -> None:
        """Gives the gradients that exist the unit of a loss whose gradients will be added to them.

        Where the loss changes, the one before is charged with the infinities that are there already.
        """
        unit = self._scales[loss_id].unit()
        switched = loss_id != self._loss_id
        seen: set[int] = set()
        records = self._records.items()
        if len(records) > 1:
            records.sort(key=lambda item: item[1].unit is not None)
        for optimizer, record in records:
            before, record.unit = record.unit, unit
            charge = switched and before is not None
            if before is not unit or charge:
                parameters = parameters_of(optimizer)
                if self._sharing:  # what one optimizer has made true is not multiplied for another again
                    parameters = [p for p in parameters if id(p) not in seen]
                    seen.update(map(id, parameters))
                gradients = gradients_of(parameters)
                if gradients:
                    found = multiply(gradients, None if before is unit else partial(unit.over, before))
                    if charge:
                        record.charge(found, self._loss_id, len(self._scales))
            record.reopen(optimizer)
        self._loose.bring_to(unit, self._records)
        self._last_unit, self._loss_id = unit, loss_id

    def _scaled(self, outputs: Any) -> Any:
        if isinstance(outputs, torch.Tensor):
            wide = outputs.float() if outputs.dtype in HALF_DTYPES else outputs
            scaled = wide * self._unit.on(outputs.device)
            if self.on_scaled is not None:
                self.on_scaled(scaled)
            return scaled
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self._scaled(output) for output in outputs)
        if isinstance(outputs, Iterable) and not isinstance(outputs, (str, bytes)):
            return map(self._scaled, outputs)
        raise TypeError(f"amp.scaler.scale got {outputs!r}; allowed: a tensor, or an iterable of tensors")

    def unscale_(self, optimizer: Any) -> None:
        """Gives the optimizer's gradients their true values, to clip or inspect them before ``step``.

        Args:
            optimizer: the optimizer whose gradients are complete.

        Raises:
            TypeError: it is no optimizer and holds none.
        """
        inner = inner_optimizer(optimizer)
        if self._in_closure or self._locating:
            return
        if context.distributed:
            passes.end_passes()
        record = self._record(inner)
        if not record.ready:
            self._make_ready(inner, record, parameters_of(inner))
            self._unscaled_early = True

    def unscale_gradients(self, gradients: Any) -> Any:
        """The true values of what ``torch.autograd.grad`` returned for a loss that was scaled last.

        New tensors, through which one can differentiate again (``create_graph=True``), as a gradient penalty does.

        Args:
            gradients: a tensor of any shape, ``None`` for an input that was not used, or a tuple or list of these.

        Returns:
            The same structure, half gradients in float32; the same objects where nothing is scaled.

        Raises:
            TypeError: something else was given.
        """
        return true_gradients(self, gradients)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Steps the optimizer, unless a gradient is infinite or NaN on any rank.

        With a closure, which ``LBFGS`` needs, ``scale`` does nothing while it runs: its gradients are computed
        unscaled, which float16 warns of once. If one of them is not finite, parameters and optimizer state are put back
        as they were before the step; the copy for this costs memory of their size.

        Args:
            optimizer: a torch optimizer, or an object around one that has ``step`` and holds it as
                ``optimizer``.
            args: passed on to ``optimizer.step``.
            kwargs: passed on to ``optimizer.step``.

        Returns:
            What ``optimizer.step`` returned, or ``None`` for a skipped step.

        Raises:
            TypeError: ``optimizer`` is no optimizer and holds none.
            RuntimeError: with several processes, the optimizer holds a parameter of no prepared model, or one that its
                model had before it was sharded, or shards and gets a closure; or its model is in torch DDP's ``join()``
                while the scale is dynamic.
        """
        if self._locating:
            inner_optimizer(optimizer)
            return None
        warn_of_training_alone()
        self.stepping = True
        try:
            return self._step(optimizer, args, kwargs)
        finally:
            self.stepping = False

    def _step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inner = inner_optimizer(optimizer)
        parameters = parameters_of(inner)
        if context.distributed:
            passes.end_passes()
            averaging.follow_models()
        if self._known_optimizers.get(inner) != len(parameters):
            self._meet(inner)
        delayed = averaging.delayed(parameters)
        closure = closure_in(args, kwargs)
        if not (self._looks_at_gradients or delayed or (closure is not None and context.distributed)):
            result = optimizer.step(*args, **kwargs)
            self._note(self._record(inner), have_gradients(parameters))
            return result
        record = self._record(inner)
        if closure is not None:
            step = ClosureStep(optimizer, inner, closure, self._looks_at_gradients, None)
            return step_with_closure(self, step, record, args, kwargs)
        if not record.ready:
            self._make_ready(inner, record, parameters)
        record.ready = False
        finding = self._taken(record, parameters)
        changes = have_gradients(parameters)
        with masters.exchanged(inner) if masters.has_masters(inner) else nullcontext():
            result, skipped = self._step_unless(finding, optimizer, args, kwargs)
        if skipped:
            self._skip(inner)
        self._note(record, changes, finding)
        record.left_over = finding if changes else None
        record.losses = self._losses
        record.stamps = stamps(delayed)
        return result

    def _step_unless(
        self, finding: Finding | None, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, bool]:
        """Steps the optimizer, unless something was found; returns its result, and whether it was left out here."""
        groups = groups_to_fuse(optimizer) if finding is not None and not finding.is_known() else None
        if finding is not None and groups is not None:
            with told(optimizer, finding.flag, groups):
                return optimizer.step(*args, **kwargs), False
        if finding is not None and finding:
            return None, True
        return optimizer.step(*args, **kwargs), False

    def _meet(self, optimizer: torch.optim.Optimizer) -> None:
        if context.distributed:
            _require_prepared(optimizer)
        if context.verbose and context.rank == 0:
            advise_merging(optimizer)
        self._known_optimizers[optimizer] = len(parameters_of(optimizer))
        self._loose.look_again()

    def _skip(self, optimizer: torch.optim.Optimizer) -> None:
        masters.return_gradients()  # as a step would, before the script lets go of them
        # The scheduler would otherwise warn that it was stepped before the optimizer.
        optimizer._opt_called = True  # type: ignore[attr-defined]
        buffers.after_step(optimizer)  # what torch calls at a step that is made

    def _note(self, record: Record, changes: bool, finding: Finding | None = None) -> None:
        record.changed, record.decided, self._last = changes, finding, record
        if finding is not None:
            self._skips.add_step(finding)

    def holds_scaled(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether gradients of this optimizer may have the unit of a scaled loss: it asks no device.

        Args:
            optimizer: a torch optimizer, also one that never stepped here.
        """
        if not (self._losses and self.is_enabled()):
            return False
        record = self._records.get(optimizer)
        if record is not None:
            return not (record.unit is None or record.ready)
        return any(p.grad is not None and not self._loose.are_true(p) for p in parameters_of(optimizer))

    def stepped_by(self, optimizer: Any) -> bool:
        """Whether the last ``step`` of this optimizer changed parameters; ``False`` before its first.

        Args:
            optimizer: what ``step`` got, or the torch optimizer in it.

        Raises:
            TypeError: it is no optimizer and holds none.
        """
        record = self._records.get(inner_optimizer(optimizer))
        return record is not None and record.stepped

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Adjusts the scales after the step of an iteration; does nothing if no gradient was checked since.

        Args:
            new_scale: a scale to use from here on instead, for all losses, as a number or a tensor of one element.

        Raises:
            GradientOverflowError: ``max_skips`` steps in a row were skipped.
            ValueError: ``new_scale`` is not positive and finite.
        """
        if not self._looks_at_gradients or self._locating:
            return
        if self._unscaled_early:
            self._unscaled_early = False
            for optimizer, record in self._records.items():
                if record.ready:  # unscaled and checked, but the script chose not to step
                    self._taken(record, parameters_of(optimizer))
                    record.ready = False
        findings, self._findings = self._findings, []
        charges, self._charges = self._charges, []
        checked, self._checked = self._checked, []
        if new_scale is not None and self.is_enabled():
            value = float(new_scale)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"amp.scaler.update got new_scale={new_scale!r}; allowed: a positive number")
            for loss_scale in self._scales:
                loss_scale.put(value)
            self._set_from_outside += 1
        if not findings:
            return
        # Optimizers that share a backward pass may each have an update.
        continues = bool(self._updated) and len(checked) == len(findings) and self._updated.isdisjoint(checked)
        if self._updated and not continues:
            self._forget_iteration()
        self._updated.update(checked or [0])
        location = self._skips.end_iteration(findings, self.max_skips, continues=continues)
        if self._skips.in_a_row >= self.max_skips:
            scale = self.get_scale(self._loss_id)
            raise self._skips.error(scale, location, self._overflow_ranks, self._records)
        if new_scale is None:
            for loss_id in self._taking_part:
                found = strongest([charge[loss_id] for charge in charges] or [f.flag for f in findings])
                lowered = self._lowered.get(loss_id)
                self._lowered[loss_id] = found if lowered is None else strongest([lowered, found])
                self._scales[loss_id].follow(
                    found if lowered is None else found * (lowered.to(found.device) == 0),
                    counts=not continues,
                    growth=self.growth_factor,
                    backoff=self.backoff_factor,
                    interval=self.growth_interval,
                    floor=self.min_scale,
                    ceiling=self.max_scale,
                )

    def locate_overflow(
        self, step_function: Callable[[], Any], models: Iterable[torch.nn.Module] | None = None
    ) -> OverflowLocation | None:
        """Replays a step and tells where its first infinity or NaN appears.

        The parameters, gradients and buffers of the models and all random states are put back afterwards, and
        ``amp.scaler`` neither steps nor changes. What else the function does, like calling a plain
        ``optimizer.step()`` or reading a loader, stays done. In several processes all of them must call it.

        Args:
            step_function: computes the loss of one step and calls ``backward``; no arguments.
            models: where to look; by default in all prepared models.

        Returns:
            The location, or ``None`` if everything in the models was finite.

        Raises:
            ValueError: no model was given and none is prepared.
        """
        return replayed(self, step_function, models)

    def get_scale(self, loss_id: int = 0) -> float:
        """The current scale of a loss; 1.0 where nothing is scaled.

        Args:
            loss_id: which of the ``num_losses`` of ``amp.init``, from 0.

        Raises:
            ValueError: there is no such loss.
        """
        self._require_loss(loss_id)
        return self._scales[loss_id].value if self.is_enabled() else 1.0

    def _get_scale_async(self) -> torch.Tensor:
        """The scale of the last loss, a tensor of its own; torch's name, for optimizers that read it."""
        return self._unit.on(torch.device(context.device_type())).clone()

    def get_growth_factor(self) -> float:
        """What the scale is multiplied by after ``growth_interval`` good steps."""
        return self.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Changes the growth factor.

        Args:
            new_factor: what the scale is multiplied by after ``growth_interval`` good steps.
        """
        self.growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """What the scale is multiplied by after a skipped step."""
        return self.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Changes the backoff factor.

        Args:
            new_factor: what the scale is multiplied by after a skipped step.
        """
        self.backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """The number of good steps in a row before the scale grows."""
        return self.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Changes the growth interval.

        Args:
            new_interval: the number of good steps in a row before the scale grows.
        """
        self.growth_interval = new_interval

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, with the keys of ``torch.amp.GradScaler``, which can load it, and some more.

        Empty where nothing is scaled, unless a state was loaded: that one is handed on, so that a run at O0 or in
        bfloat16 does not lose the scale of the runs around it.
        """
        return state_of(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state of :meth:`state_dict`, of ``torch.amp.GradScaler``, or of Apex's ``amp.state_dict()``.

        An empty state, saved at O0 or in bfloat16, changes nothing. A static scale stays what ``amp.init`` was told,
        and a dynamic one is brought between ``min_scale`` and ``max_scale``. torch's single scale is taken for every
        loss; of Apex's those that there are.

        Args:
            state_dict: the state.

        Raises:
            TypeError: it is no mapping.
            ValueError: it comes from something else, or a scale in it is negative, infinite or NaN.
        """
        load_into(self, state_dict)

    def _record(self, optimizer: torch.optim.Optimizer) -> Record:
        record = self._records.get(optimizer)
        if record is None:
            # Before the first scaled loss all gradients have their true values.
            record = Record(None if self._losses == 0 or not self.is_enabled() else self._unit)
            self._sharing = self._sharing or self._shares_parameters(optimizer)
            if record.unit is not None:
                self._loose.give_up(parameters_of(optimizer), record.unit)
            self._records[optimizer] = record
            self._loose.look_again()
        return record

    def _shares_parameters(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether another optimizer has some of the same parameters, as a second one for a part of the model."""
        known = {id(p) for other in self._records for p in parameters_of(other)}
        return any(id(p) in known for p in parameters_of(optimizer))

    def _scale_what_others_made_true(self, optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> None:
        """Gives gradients one unit, before those of a second optimizer over the same parameters are unscaled."""
        others = [other for other, record in self._records.items() if record.unit is None and other is not optimizer]
        true = {id(p) for other in others for p in parameters_of(other)}
        multiply(gradients_of(p for p in parameters if id(p) in true), self._unit.on)

    def _make_ready(self, optimizer: torch.optim.Optimizer, record: Record, parameters: list[torch.Tensor]) -> None:
        """Averages delayed gradients, unscales, and looks for infinities and NaN on all ranks."""
        if self.on_unscale is not None and record.unit is not None:
            self.on_unscale(optimizer)
        if self._sharing and record.unit is not None:
            self._scale_what_others_made_true(optimizer, parameters)
        delayed = averaging.delayed(parameters)
        average = bool(delayed) and (record.losses != self._losses or record.stamps != stamps(delayed))
        combined = self._combined(record, parameters, delayed)
        if average and not (combined is not None and combined.average(delayed)):
            averaging.average_gradients(delayed)
        if combined is not None:
            combined.gather(parameters)
        if self._looks_at_gradients:
            if self._known_optimizers.get(optimizer) not in (None, len(parameters)):
                self._loose.look_again()  # it was given parameters since its last step
            loose = self._loose.make_true(self._records) if self._losses and self.is_enabled() else None
            if loose is not None:
                # Parameters of no prepared model are copies, which get the gradients of the model's own.
                held = set(map(id, parameters))
                if any(id(p) in held for model in prepared_models() for p in model.parameters()):
                    loose = None
            self._unscale_and_check(optimizer, record, parameters, loose)
        record.unit = None
        record.ready = True

    def _combined(
        self, record: Record, parameters: list[torch.Tensor], delayed: list[torch.Tensor]
    ) -> CombinedGradients | None:
        if not (context.combine_grad and context.mixed):
            return None
        return combined_of(record, parameters, delayed, self.process_group)

    def _unscale_and_check(
        self,
        optimizer: torch.optim.Optimizer,
        record: Record,
        parameters: list[torch.Tensor],
        copied: torch.Tensor | None,
    ) -> None:
        """Args: ``copied`` is 1.0 if a gradient was not finite that the optimizer's parameters get a copy of."""
        found = record.with_carried(unscale(optimizer, parameters, record.unit, record.combined))
        if copied is not None:
            found = torch.maximum(found, copied.to(found.device))
        several = len(self._scales) > 1
        charges = record.charge(found, self._loss_id, len(self._scales)) if several else None
        ranks = record.ranks(parameters, self.process_group)
        if ranks is not None:
            if self.is_enabled() and ranks.joining() and context.loss_scale == "dynamic":
                _refuse_join()
            if several or self.agrees_always or not ranks.averaged or record.agreed != self._set_from_outside:
                record.agreed = self._set_from_outside
                found, charges = self._agree(ranks, found, charges)
        record.finding, record.charges = Finding(found), charges

    def _agree(
        self, ranks: Ranks, found: torch.Tensor, charges: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What all ranks found, and which losses brought it. A collective of ``ranks``.

        Scales that differ would mix gradients of different units when they are averaged, in silence; they travel along,
        so that it is noticed.
        """
        scales = torch.stack([scale.on(found.device) for scale in self._scales if self.is_enabled()] or [found])
        count = len(scales)
        parts = [found.reshape(1), scales, -scales, *([] if charges is None else [charges])]
        agreed = ranks.strongest(torch.cat(parts)).to(found.device)
        highest, lowest = agreed[1 : count + 1], -agreed[count + 1 : 2 * count + 1]
        if self.is_enabled() and not torch.equal(highest, lowest):
            self._equalise(lowest.tolist())
            agreed[0] = 1.0
        return agreed[0], None if charges is None else agreed[2 * count + 1 :]

    def _taken(self, record: Record, parameters: list[torch.Tensor]) -> Finding | None:
        """What was found in an optimizer's gradients; from now on it counts for the coming ``update``."""
        finding, record.finding = record.finding, None
        if record.abandoned:
            record.abandoned = False
            finding = Finding(torch.ones(()) if finding is None else torch.ones_like(finding.flag))
        charges, record.charges = record.charges, None
        if finding is not None:
            self._findings.append(finding)
            self._checked.append(id(record))
            self._overflow_ranks = record.ranks(parameters, self.process_group)
            if charges is not None:
                self._charges.append(charges)
        return finding

    def _equalise(self, scales: list[float]) -> None:
        """Brings the ranks together again, whose averaged gradients were a mixture of units."""
        _log.warning("the loss scales of the ranks differed; the step is skipped and they go on with %s", scales)
        for loss_scale, scale in zip(self._scales, scales, strict=True):
            loss_scale.put(scale, 0)


def _require_prepared(optimizer: torch.optim.Optimizer) -> None:
    """Refuses parameters whose gradients nothing averages: the ranks would drift apart in silence.

    A copy of a prepared model is taken in as one that averages at the step.
    """
    sharding.refuse_replaced_together(parameters_of(optimizer), f"amp.scaler.step, with a {type(optimizer).__name__},")
    sharding.refuse_for_rows(optimizer)
    known = prepared_parameters()
    for index, parameter in enumerate(parameters_of(optimizer)):
        if not parameter.requires_grad or id(parameter) in known:
            continue
        copied = copy_with(parameter)
        if copied is None:
            raise RuntimeError(
                f"amp.scaler.step got a {type(optimizer).__name__} whose parameter {index}, of shape "
                f"{tuple(parameter.shape)}, belongs to no prepared model: its gradients would differ on each "
                "rank. Pass the module that holds it to amp.prepare_model"
            )
        averaging.delay(copied)
        remember(copied, copied)
        buffers.watch(copied, equal=False)
        known = prepared_parameters()


def _refuse_join() -> None:
    raise RuntimeError(
        "amp.scaler got the gradients of a DistributedDataParallel model within join(), with a dynamic loss scale: "
        "ranks that run out of data first would miss changes of the scale, and the averaged gradients mix units. Use "
        "amp.init(ddp=True) with amp.prepare_loader(loader, uneven='join'), loss_scale=<number>, or dtype='bf16'"
    )


def _restored(enabled: bool, state: dict[str, Any]) -> Scaler:
    """What pickle makes of a scaler: one of its own, in the same state."""
    scaler = Scaler(enabled)
    scaler.load_state_dict(state)
    return scaler


scaler = Scaler()
"""The one scaler of this process."""
