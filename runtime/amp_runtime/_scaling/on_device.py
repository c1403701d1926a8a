"""Steps that are skipped on the device: torch's protocol with its fused optimizers, which nobody waits for.

An optimizer with ``_step_supports_amp_scaling`` reads ``found_inf`` and ``grad_scale`` from itself, and its kernel
leaves everything as it is where ``found_inf`` is 1. See ``torch/amp/grad_scaler.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from amp_runtime.optim._fused import FUSED_DEVICES, fusable_groups, fused_kernels

_KINDS = {getattr(torch.optim, name) for name in FUSED_DEVICES}


def skips_on_device(optimizer: Any) -> bool:
    """Whether an optimizer's step can be called with gradients that are not finite, inside :func:`told`.

    An object around an optimizer does more than its step, and would not know that nothing was to be done.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        return False
    if not (getattr(optimizer, "_step_supports_amp_scaling", False) or _can_be_fused(optimizer)):
        return False
    return not isinstance(optimizer, torch.optim.SGD) or all(map(_has_momentum, _first_states(optimizer)))


def _can_be_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether one of torch's own optimizers, as it is, has a fused kernel for all of its parameters."""
    if type(optimizer) not in _KINDS or "step" in vars(optimizer):
        return False
    return len(fusable_groups(optimizer, type(optimizer))) == len(optimizer.param_groups)


def _first_states(optimizer: torch.optim.SGD) -> Iterator[Any]:
    """The state of one parameter of each group that has momentum."""
    for group in optimizer.param_groups:
        if group["momentum"]:
            first = next((p for p in group["params"] if p.grad is not None), None)
            if first is not None:
                yield optimizer.state.get(first)


def _has_momentum(state: Any) -> bool:
    # A first step makes the buffer in memory as it finds it, and the kernel that skips leaves it so.
    return bool(state) and state.get("momentum_buffer") is not None


@contextmanager
def told(optimizer: Any, found: torch.Tensor) -> Iterator[None]:
    """Tells an optimizer for the length of a step whether it is to be skipped; its gradients are true already."""
    own = getattr(optimizer, "_step_supports_amp_scaling", False)
    optimizer.grad_scale, optimizer.found_inf = None, found
    try:
        with fused_kernels(optimizer, [] if own else optimizer.param_groups):
            yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf
