"""Steps that are skipped on the device: torch's protocol with its fused optimizers, which nobody waits for.

An optimizer with ``_step_supports_amp_scaling`` reads ``found_inf`` and ``grad_scale`` from itself, and its kernel
leaves everything as it is where ``found_inf`` is 1. See ``torch/amp/grad_scaler.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from amp_runtime._core.dtensors import any_sharded
from amp_runtime.optim._fused import FUSED_DEVICES, Fused, fusable_groups, fused_kernels

_KINDS = {getattr(torch.optim, name) for name in FUSED_DEVICES}


def groups_to_fuse(optimizer: Any) -> list[dict[str, Any]] | None:
    """Which groups have to be fused, for a step that may be called with gradients that are not finite.

    Returns:
        The groups, for :func:`told`; ``None`` for an optimizer that cannot be skipped on the device. An object around
        an optimizer does more than its step, and would not know that nothing was to be done.
    """
    if not isinstance(optimizer, torch.optim.Optimizer) or _is_patched(optimizer):
        return None
    if any_sharded(parameter for group in optimizer.param_groups for parameter in group["params"]):
        return None  # torch's kernels for shards are not told
    groups: list[dict[str, Any]] = []
    if isinstance(optimizer, Fused) or type(optimizer) in _KINDS:
        groups = [group for group in optimizer.param_groups if not group.get("fused")]
        kind = optimizer._kind if isinstance(optimizer, Fused) else type(optimizer)
        if len(fusable_groups(optimizer, kind)) < len(groups):
            return None
    elif not _can_be_told(optimizer) or _wants_a_scaler(optimizer):
        return None
    if isinstance(optimizer, torch.optim.SGD) and not all(map(_has_momentum, _first_states(optimizer))):
        return None
    return groups


def _is_patched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the script put a function of its own in the place of ``step``, where torch's schedulers count."""
    own = vars(optimizer).get("step")
    return own is not None and not any(hasattr(own, mark) for mark in ("_wrapped_by_lr_sched", "_with_counter"))


def _can_be_told(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of the optimizer's own looks at ``found_inf``.

    An optimizer around another may hand attributes on, as Apex's LARC does, and answers for the other one: that is not
    told, and what is done before its step is not skipped.
    """
    name = "_step_supports_amp_scaling"
    return (name in vars(optimizer) or hasattr(type(optimizer), name)) and bool(getattr(optimizer, name))


def _wants_a_scaler(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step expects torch's scaler as an argument and does not look at ``found_inf``, as Apex's do."""
    return not hasattr(optimizer, "reads_found_inf") and "grad_scaler" in inspect.signature(optimizer.step).parameters


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
def told(optimizer: Any, found: torch.Tensor, groups: list[dict[str, Any]]) -> Iterator[None]:
    """Tells an optimizer for the length of a step whether it is to be skipped; its gradients are true already."""
    optimizer.grad_scale, optimizer.found_inf = None, found
    try:
        with fused_kernels(optimizer, groups):
            yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf
