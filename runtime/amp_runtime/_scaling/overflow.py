"""Where an overflow happened: hooks for the length of one step that is known to overflow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from amp_runtime._core.randomness import random_state, set_random_state
from amp_runtime._core.trees import tensors_in
from amp_runtime._core.versions import assign_gradient
from amp_runtime._scaling.gradients import is_finite


@dataclass(frozen=True)
class OverflowLocation:
    """The first place in a step where a number was not finite.

    Attributes:
        module: the dotted name of the module, after its model's class: ``Net.layers.3``. Empty if it was the loss.
        type_name: the module's class.
        what: what was not finite: ``"output"``, ``"gradient of its input"``, ``"gradient of its output"``,
            ``"gradient of its parameter NAME"`` or ``"loss"``.
        dtype: the dtype of that tensor.
        largest_input: the largest magnitude among the module's floating inputs, NaN and infinities left out;
            ``None`` if it has none.
        finite_inputs: whether all of these were finite.
    """

    module: str
    type_name: str
    what: str
    dtype: torch.dtype
    largest_input: float | None = None
    finite_inputs: bool = True

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        if not self.module:
            return f"Every output of the prepared models was finite, but the loss ({kind}) that followed was not"
        where = f"{self.module} ({self.type_name}) is the first module whose "
        where += "output" if self.what == "output" else "gradient"
        detail = "" if self.what == "output" else f", here the {self.what},"
        inputs = ""
        if self.largest_input is not None:
            inputs = f"; the largest magnitude in its inputs was {self.largest_input:g}"
        if not self.finite_inputs:
            inputs += ", and they were not finite either: look at the data"
        return f"{where}{detail} was not finite, in {kind}{inputs}"


@dataclass
class _Inputs:
    largest: float | None
    finite: bool


class Observer:
    """Watches models for one step. Nothing is hooked before it is made, nor after :meth:`remove`.

    Args:
        models: the models, without wrappers around them.
    """

    def __init__(self, models: Iterable[nn.Module]) -> None:
        self._handles: list[Any] = []
        self._forward: OverflowLocation | None = None
        self._loss: OverflowLocation | None = None
        self._backward: OverflowLocation | None = None
        self._backward_storage = 0
        self._inputs: dict[str, _Inputs] = {}
        seen: set[int] = set()
        for model in models:
            for path, module in model.named_modules():
                if id(module) in seen or isinstance(module, torch.jit.ScriptModule):
                    continue
                seen.add(id(module))
                name = ".".join(filter(None, (type(model).__name__, path)))
                self._watch(name, module)

    def _watch(self, name: str, module: nn.Module) -> None:
        hook = partial(self._after_forward, name)
        self._handles.append(module.register_forward_hook(hook, with_kwargs=True))
        for own, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                note = partial(self._see_gradient, name, type(module).__name__, f"gradient of its parameter {own}")
                self._handles.append(parameter.register_hook(note))  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Removes every hook."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def see_loss(self, loss: Any) -> None:
        """Notes whether the loss is finite, before it is scaled."""
        for tensor in tensors_in(loss):
            if self._loss is None and not is_finite(tensor):
                self._loss = OverflowLocation("", "", "loss", tensor.dtype)

    def location(self) -> OverflowLocation | None:
        """The first place that explains the overflow; ``None`` if everything that was seen was finite.

        A module may put infinities out on purpose, in a mask for instance. They are blamed only if the loss was not
        finite either, or if there is nothing else to blame.
        """
        if self._loss is not None:
            return self._forward or self._loss
        return self._backward or self._forward

    def _after_forward(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        inputs = [tensor for tensor in tensors_in((args, kwargs)) if tensor.is_floating_point()]
        outputs = [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
        kind = type(module).__name__
        with torch.no_grad():
            seen = _Inputs(_largest(inputs), all(map(is_finite, inputs)))
            self._inputs[name] = seen
            bad = next((tensor for tensor in outputs if not is_finite(tensor)), None)
        if bad is not None and self._forward is None:
            self._forward = OverflowLocation(name, kind, "output", bad.dtype, seen.largest, seen.finite)
        for tensors, what in ((outputs, "gradient of its output"), (inputs, "gradient of its input")):
            for tensor in tensors:
                if tensor.requires_grad and not (tensor.is_leaf and what == "gradient of its output"):
                    note = partial(self._see_gradient, name, kind, what)
                    self._handles.append(tensor.register_hook(note))  # type: ignore[no-untyped-call]

    def _see_gradient(self, name: str, kind: str, what: str, gradient: torch.Tensor) -> None:
        storage = gradient.data_ptr() if not gradient.is_sparse else 0
        if self._backward is not None:
            # A tensor between two modules is the output of one and the input of the other, whose backward made it.
            passed_on = self._backward.what == "gradient of its output" and what == "gradient of its input"
            if not (passed_on and storage == self._backward_storage):
                return
        elif is_finite(gradient):
            return
        seen = self._inputs.get(name, _Inputs(None, True))
        self._backward = OverflowLocation(name, kind, what, gradient.dtype, seen.largest, seen.finite)
        self._backward_storage = storage


def _largest(tensors: list[torch.Tensor]) -> float | None:
    magnitudes = [t.detach().float().nan_to_num(0.0, 0.0, 0.0).abs().max().item() for t in tensors if t.numel()]
    return max(magnitudes, default=None)


@contextmanager
def undone(models: Iterable[nn.Module]) -> Iterator[None]:
    """Puts back, after the block, random states and what models hold: parameters, gradients and buffers."""
    tensors: dict[int, tuple[Any, torch.Tensor]] = {}
    gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    buffers: list[tuple[nn.Module, dict[str, Any]]] = []
    parameter: torch.Tensor
    for model in models:
        for parameter in model.parameters():
            tensors[id(parameter)] = (parameter, parameter.detach().clone())
            gradient = parameter.grad
            if gradient is not None and not gradient.is_sparse:  # DDP's gradients share memory with those to come
                tensors[id(gradient)] = (gradient, gradient.clone())
            gradients.append((parameter, gradient))
            parameter.grad = None
        for module in model.modules():
            buffers.append((module, dict(module._buffers)))
            for buffer in module._buffers.values():
                if buffer is not None:
                    tensors[id(buffer)] = (buffer, buffer.detach().clone())
    try:
        with _random_state_kept():
            yield
    finally:
        for module, kept in buffers:
            module._buffers.update(kept)
        with torch.no_grad():
            for tensor, value in tensors.values():
                tensor.copy_(value)
        for parameter, gradient in gradients:
            assign_gradient(parameter, gradient)


@contextmanager
def _random_state_kept() -> Iterator[None]:
    state = random_state()
    started = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if started else ()
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            set_random_state(state)


def locate(step: Callable[[], Any], models: list[nn.Module], watch: Callable[[Observer | None], None]) -> Any:
    """Runs ``step`` once under observation and undoes what it did; returns an :class:`OverflowLocation` or ``None``.

    Args:
        step: computes a loss and its gradients.
        models: what to watch and to put back.
        watch: is given the observer for the length of the step, and ``None`` after it.
    """
    observer = Observer(models)
    watch(observer)
    try:
        with undone(models):
            step()
    finally:
        watch(None)
        observer.remove()
    return observer.location()
