"""What losses are multiplied by, and which steps are skipped: by torch's scaler, the runtime's, its Apex interface."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import imports
from .record import guarded
from .steps import Steps

_APEX = "amp_runtime.apex"


def watch(steps: Steps) -> None:
    """Follow every scaler that the script may import."""
    scaling = _Scaling(steps)
    steps.record.finishers.append(scaling.facts)
    imports.after("torch.amp.grad_scaler", scaling.watch_torch)
    imports.after("amp_runtime._scaling.scaler", scaling.watch_runtime)
    imports.after(f"{_APEX}.amp.handle", scaling.watch_scale_loss)
    imports.after(f"{_APEX}.amp.opt", scaling.watch_wrapper)
    imports.after(f"{_APEX}.amp._process_optimizer", scaling.watch_stash)
    imports.after(f"{_APEX}.fp16_utils.loss_scaler", scaling.watch_fp16_utils)


class _Scaling:
    """The scalers of this process; ``skipped`` counts the steps of optimizers that did not take place."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.skipped = 0
        # Kept, so that no other object gets its number.
        self._scalers: list[Any] = []
        self._stepped: list[Any] = []

    def facts(self) -> Iterator[tuple[str, Any]]:
        """What is known at the end."""
        yield "skipped", self.skipped

    def watch_torch(self, module: Any) -> None:
        """Follow ``torch.amp.GradScaler``."""

        def factor(scaler: Any, args: Any, kwargs: Any) -> Any:
            # A tensor that update() changes in place; to read its number here would wait for the GPU.
            return scaler._scale.detach().to(scaler._scale.device, copy=True) if scaler.is_enabled() else None

        module.GradScaler.scale = self._scaling(module.GradScaler.scale, factor)
        module.GradScaler.step = self._stepping(module.GradScaler.step, "torch")
        module.GradScaler.update = self._updating(module.GradScaler.update, "torch")

    def watch_runtime(self, module: Any) -> None:
        """Follow ``amp_runtime.scaler``."""

        def factor(scaler: Any, args: Any, kwargs: Any) -> Any:
            return scaler._get_scale_async() if scaler.is_enabled() and not scaler._in_closure else None

        module.Scaler.scale = self._scaling(module.Scaler.scale, factor)
        module.Scaler.step = self._stepping(module.Scaler.step, "runtime")
        module.Scaler.update = self._updating(module.Scaler.update, "runtime")

    def watch_scale_loss(self, module: Any) -> None:
        """Follow ``amp.scale_loss`` of the runtime's Apex interface."""
        original = module.scale_loss

        @functools.wraps(original)
        @contextmanager
        def scale_loss(loss: Any, optimizers: Any, loss_id: int = 0, *args: Any, **kwargs: Any) -> Iterator[Any]:
            with original(loss, optimizers, loss_id, *args, **kwargs) as scaled:
                if scaled is not loss:
                    self._remember(scaled, module._amp_state.loss_scalers[loss_id].loss_scale())
                yield scaled

        module.scale_loss = scale_loss

    def watch_wrapper(self, module: Any) -> None:
        """Follow the optimizers of ``amp.init``, Apex's first interface."""
        original = module.OptimWrapper.scale_loss

        @functools.wraps(original)
        @contextmanager
        def scale_loss(wrapper: Any, loss: Any) -> Iterator[Any]:
            with original(wrapper, loss) as scaled:
                if scaled is not loss:
                    self._remember(scaled, wrapper._loss_scaler[wrapper._loss_idx].loss_scale())
                yield scaled

        module.OptimWrapper.scale_loss = scale_loss

    def watch_stash(self, module: Any) -> None:
        """Count the steps that ``amp.scale_loss`` makes an optimizer skip."""
        original = module.Stash.skip_next_step

        @functools.wraps(original)
        def skip_next_step(stash: Any, *args: Any, **kwargs: Any) -> Any:
            self.skipped += 1
            return original(stash, *args, **kwargs)

        module.Stash.skip_next_step = skip_next_step

    def watch_fp16_utils(self, module: Any) -> None:
        """Follow the scalers of ``FP16_Optimizer``."""
        for name in ("LossScaler", "DynamicLossScaler"):
            self._follow_backward(getattr(module, name))
        original = module.DynamicLossScaler.update_scale

        @functools.wraps(original)
        def update_scale(scaler: Any, overflow: bool) -> Any:
            self.skipped += bool(overflow)
            return original(scaler, overflow)

        module.DynamicLossScaler.update_scale = update_scale

    def _follow_backward(self, owner: Any) -> None:
        if "backward" not in vars(owner):
            return
        original = owner.backward

        @functools.wraps(original)
        def backward(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self.steps.last_scale = scaler.loss_scale
            return original(scaler, *args, **kwargs)

        owner.backward = backward

    def _scaling(self, scale: Callable[..., Any], factor: Callable[..., Any]) -> Callable[..., Any]:
        """``scale`` with a note of what it multiplied by."""

        @functools.wraps(scale)
        def scaled(scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
            results = scale(scaler, outputs, *args, **kwargs)
            self._note(results, factor, scaler, args, kwargs)
            return results

        return scaled

    @guarded
    def _note(self, results: Any, factor: Callable[..., Any], scaler: Any, args: Any, kwargs: Any) -> None:
        by = factor(scaler, args, kwargs)
        if by is None:
            return
        torch = self.steps.torch
        if isinstance(results, torch.Tensor):
            self._remember(results, by)
        for result in results if isinstance(results, (list, tuple)) else ():
            if isinstance(result, torch.Tensor):
                self._remember(result, by)

    @guarded
    def _remember(self, tensor: Any, factor: Any) -> None:
        self.steps.scales[id(tensor)] = (weakref.ref(tensor), factor)
        self.steps.last_scale = factor

    def _stepping(self, step: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """``step`` with a note of it, and a count of the calls that step nothing."""

        @functools.wraps(step)
        def stepped(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.steps.updates
            self._add(scaler, kind, optimizer)
            result = step(scaler, optimizer, *args, **kwargs)
            self._count(scaler, optimizer, before)
            return result

        return stepped

    def _updating(self, update: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """``update`` with a note of it."""

        @functools.wraps(update)
        def updated(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self._add(scaler, kind)
            return update(scaler, *args, **kwargs)

        return updated

    @guarded
    def _add(self, scaler: Any, kind: str, optimizer: Any = None) -> None:
        """Note a step of an optimizer, or an update without one."""
        facts = {"scaler": _number(self._scalers, scaler), "kind": kind, "after": self.steps.record.backwards}
        if optimizer is not None:
            facts["steps"] = _number(self._stepped, optimizer)
        if kind == "runtime":
            runtime = sys.modules.get("amp_runtime._core.context")
            facts["fixed"] = getattr(getattr(runtime, "context", None), "loss_scale", "dynamic") != "dynamic"
        self.steps.record.add(**facts)

    @guarded
    def _count(self, scaler: Any, optimizer: Any, before: int) -> None:
        if self.steps.updates == before and any(
            parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"]
        ):
            self.skipped += 1


def _number(known: list[Any], thing: Any) -> int:
    """The place of an object among those that are known, to which it is added."""
    for number, other in enumerate(known):
        if other is thing:
            return number
    known.append(thing)
    return len(known) - 1
