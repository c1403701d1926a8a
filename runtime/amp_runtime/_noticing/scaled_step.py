"""An optimizer that steps on the gradients of a scaled loss, without ``amp.scaler``.

Its update would be as many times too large as the scale. Which gradients are scaled is known from the graph of the
loss: after its backward pass the gradients that have changed are noted, with their versions. A step that meets one of
them unchanged, and is not the scaler's, is the error. The first ten scaled losses are looked at, the hundredth, and so
on; in other steps it costs one question. Gradients that were changed in between, as by clipping, are not told from true
ones.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from amp_runtime._core.registry import TensorMap
from amp_runtime._noticing.place import line_of_script
from amp_runtime._noticing.setting import is_due, setting
from amp_runtime._scaling.scaler import scaler

_Stamp = tuple[weakref.ref[torch.Tensor], int]
_FIRST = 10


class _Noticed:
    def __init__(self) -> None:
        self.every = False
        self.losses = 0
        self.scaled: TensorMap[_Stamp] = TensorMap()
        self.hook: Any = None


_noticed = _Noticed()


def begin() -> None:
    """Looks at scaled losses from here on. Where nothing is scaled, nothing is done."""
    _noticed.every = setting() == "every"
    scaler.on_scaled = None if setting() == "off" else _see


def end() -> None:
    """Forgets everything; ``amp.shutdown`` does it."""
    global _noticed
    scaler.on_scaled = None
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
    loss.register_hook(partial(_at_backward, leaves))  # type: ignore[no-untyped-call]


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


def _at_backward(leaves: list[weakref.ref[torch.Tensor]], _: torch.Tensor) -> None:
    found = [leaf for leaf in (reference() for reference in leaves) if leaf is not None]
    before = [_stamp(leaf) for leaf in found]
    after = partial(_after_backward, found, before)
    # Behind what DDP does when a backward pass is over, which queues itself in between.
    torch.autograd.Variable._execution_engine.queue_callback(partial(_queue, after))


def _queue(callback: Any) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def _after_backward(leaves: list[torch.Tensor], before: list[_Stamp | None]) -> None:
    for leaf, earlier in zip(leaves, before, strict=True):
        now = _stamp(leaf)
        if now is not None and now != earlier:
            _noticed.scaled[leaf] = now


def _stamp(leaf: torch.Tensor) -> _Stamp | None:
    """The gradient as it is: it is another one where an operation has written it since."""
    return None if leaf.grad is None else (weakref.ref(leaf.grad), leaf.grad._version)


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if scaler.stepping or not _noticed.scaled or not scaler.holds_scaled(optimizer):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            noted = _noticed.scaled.get(parameter)
            if noted is not None and noted == _stamp(parameter):
                name = type(optimizer).__name__
                raise RuntimeError(
                    f"{line_of_script(sys._getframe())}: {name}.step() was called on the gradients of a scaled loss, "
                    f"which are {scaler.get_scale():g} times too large. Call amp.scaler.step(optimizer), or "
                    "amp.scaler.unscale_(optimizer) before it. AMP_CHECK=off leaves this check out"
                )
