"""Gradients of a scaled loss that an optimizer steps on without ``amp.scaler``, or that are written before it.

The update would be as many times too large as the scale, and what is added too small. Which gradients are scaled is
known from the graph of the loss: after its backward pass the gradients that have changed are noted, with their
versions. A step that meets one of them unchanged, and is not the scaler's, is an error. One that the scaler meets
changed, though no other loss was scaled since, was written meanwhile: that is a warning, because a write may only
multiply it.

The first ten scaled losses are looked at, the hundredth, and so on; in other steps it costs one question.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from amp_runtime._core.models import name_of
from amp_runtime._core.registry import TensorMap
from amp_runtime._noticing.place import line_of_script
from amp_runtime._noticing.setting import is_due, setting
from amp_runtime._scaling.scaler import scaler

_FIRST = 10


class _Stamp(NamedTuple):
    """A gradient as it is: it has another version where an operation has written it since."""

    gradient: weakref.ref[torch.Tensor]
    version: int

    def is_of(self, gradient: torch.Tensor | None) -> bool:
        """Whether it is of this very tensor, which ``==`` would compare by its elements."""
        return gradient is not None and self.gradient() is gradient

    def is_now(self, gradient: torch.Tensor | None) -> bool:
        """Whether this very tensor was not written since."""
        return gradient is not None and self.is_of(gradient) and self.version == gradient._version


class _Scaled(NamedTuple):
    """The gradient of a scaled loss as the backward pass has left it, and the number of the loss."""

    stamp: _Stamp
    loss: int


class _Noticed:
    def __init__(self) -> None:
        self.every = False
        self.losses = 0
        self.scaled: TensorMap[_Scaled] = TensorMap()
        self.warned = False
        self.hook: Any = None


_noticed = _Noticed()


def begin() -> None:
    """Looks at scaled losses from here on. Where nothing is scaled, nothing is done."""
    _noticed.every = setting() == "every"
    if setting() != "off":
        scaler.on_scaled, scaler.on_unscale = _see, _before_unscaling


def end() -> None:
    """Forgets everything; ``amp.shutdown`` does it."""
    global _noticed
    scaler.on_scaled = scaler.on_unscale = None
    if _noticed.hook is not None:
        _noticed.hook.remove()
    _noticed = _Noticed()


def _see(loss: torch.Tensor) -> None:
    _noticed.losses += 1
    if not (_noticed.losses <= _FIRST or is_due(_noticed.losses, _noticed.every)) or not loss.requires_grad:
        return
    if torch.compiler.is_compiling():
        return
    if _noticed.hook is None:
        _noticed.hook = register_optimizer_step_pre_hook(_before_step)
    # The hook must not hold the graph, which holds the hook.
    leaves = [weakref.ref(leaf) for leaf in _leaves(loss)]
    loss.register_hook(partial(_at_backward, leaves, _noticed.losses))  # type: ignore[no-untyped-call]


def _leaves(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors whose gradients a backward pass adds to."""
    pending, seen = [loss.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            yield leaf
        pending.extend(following for following, _ in node.next_functions)


def _at_backward(leaves: list[weakref.ref[torch.Tensor]], loss: int, _: torch.Tensor) -> None:
    found = [leaf for leaf in (reference() for reference in leaves) if leaf is not None]
    before = [None if leaf.grad is None else _Stamp(weakref.ref(leaf.grad), leaf.grad._version) for leaf in found]
    after = partial(_after_backward, found, before, loss)
    # Behind what DDP does when a backward pass is over, which queues itself in between.
    torch.autograd.Variable._execution_engine.queue_callback(partial(_queue, after))


def _queue(callback: Any) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def _after_backward(leaves: list[torch.Tensor], before: list[_Stamp | None], loss: int) -> None:
    for leaf, earlier in zip(leaves, before, strict=True):
        if leaf.grad is not None and not (earlier is not None and earlier.is_now(leaf.grad)):
            _noticed.scaled[leaf] = _Scaled(_Stamp(weakref.ref(leaf.grad), leaf.grad._version), loss)


def _held(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, _Scaled]]:
    """The optimizer's parameters whose gradients were noted and are the same tensors still."""
    for group in optimizer.param_groups if _noticed.scaled else ():
        for parameter in group["params"]:
            noted = _noticed.scaled.get(parameter)
            if noted is not None and noted.stamp.is_of(parameter.grad):
                yield parameter, noted


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    unchanged = not scaler.stepping and any(noted.stamp.is_now(p.grad) for p, noted in _held(optimizer))
    if unchanged and scaler.holds_scaled(optimizer):
        raise RuntimeError(
            f"{line_of_script(sys._getframe())}: {type(optimizer).__name__}.step() was called on the gradients of a "
            f"scaled loss, which are {scaler.get_scale():g} times too large. Call amp.scaler.step(optimizer), or "
            "amp.scaler.unscale_(optimizer) before it. AMP_CHECK=off leaves this check out"
        )


def _before_unscaling(optimizer: torch.optim.Optimizer) -> None:
    for parameter, noted in list(_held(optimizer)):
        _noticed.scaled.pop(parameter)  # the scaler writes it, perhaps for another optimizer too
        if noted.loss == _noticed.losses and not (_noticed.warned or noted.stamp.is_now(parameter.grad)):
            _noticed.warned = True
            warnings.warn(
                f"{line_of_script(sys._getframe())}: the gradient of {name_of(parameter) or 'a parameter'} was written "
                f"while it was that of a scaled loss, {scaler.get_scale():g} times too large. Unless the write only "
                "multiplies it, call amp.scaler.unscale_(optimizer) before. AMP_CHECK=off leaves this check out",
                stacklevel=2,
            )
