"""What several ranks that train the same model have to do together: skip the same steps, average the same gradients.

A collective at every ``scale_loss`` would hang scripts in which only some ranks train. So the ranks agree on skipping
only where a parallel wrapper has shown that they run in step: Apex's and torch's DistributedDataParallel, ``Reducer``
and ``combine_ddp``.

``scale_loss`` sets accumulated gradients aside during a backward pass, and a wrapper would not average them with the
new ones. That is right if they are averaged already; those that were accumulated under ``no_sync`` or
``disable_allreduce`` must stay.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from amp_runtime._core.registry import TensorMap
from amp_runtime._distributed.group import flag_device
from amp_runtime.apex._buckets import average


@dataclass(frozen=True)
class _WrappedBy:
    """What keeps a parameter equal on several ranks.

    Attributes:
        group: the ranks; ``None`` is all of them.
        module: torch's wrapper, if it is that.
    """

    group: Any = None
    module: weakref.ref[nn.Module] | None = None


_wrapped: TensorMap[_WrappedBy] = TensorMap()
_combined: TensorMap[bool] = TensorMap()
_local: TensorMap[bool] = TensorMap()


def mark(parameters: Iterable[torch.Tensor], *, combined: bool = False) -> None:
    """Notes that all ranks train ``parameters`` together; if ``combined``, nothing else averages their gradients."""
    for parameter in parameters:
        _wrapped[parameter] = _WrappedBy()
        if combined:
            _combined[parameter] = True


def notice_torch_ddp(module: nn.Module, args: Any) -> None:
    """A forward pre-hook: notes when torch's DistributedDataParallel runs the model."""
    wrapper = getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    if wrapper is None:
        return
    if not any(parameter in _wrapped for parameter in module.parameters()):
        for parameter in module.parameters():
            _wrapped[parameter] = _WrappedBy(getattr(wrapper, "process_group", None), weakref.ref(wrapper))
    if torch.is_grad_enabled() and not wrapper.require_backward_grad_sync:
        keep_local(module.parameters())


def keep_local(parameters: Iterable[torch.Tensor]) -> None:
    """Notes that a backward pass leaves gradients as they are on this rank."""
    for parameter in parameters:
        _local[parameter] = True


def is_local(parameter: torch.Tensor) -> bool:
    """Whether the gradient that a parameter has now may still have to be averaged."""
    return _local.get(parameter) is True


def settle(parameters: Iterable[torch.Tensor]) -> None:
    """Notes that an optimizer's gradients are cleared or used: what comes is new."""
    if _local:
        for parameter in parameters:
            _local[parameter] = False


def average_combined(stash: Any) -> None:
    """Averages the gradients of a model under ``combine_ddp`` over the ranks."""
    if not _combined:
        return
    average([parameter for parameter in stash.model_params() if parameter in _combined])


def agree(found: list[torch.Tensor], parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """What all ranks that train ``parameters`` together found, in place of what this one found.

    Args:
        found: scalar flags, not 0 where a gradient was not finite.
        parameters: the parameters as the model holds them.

    Returns:
        ``found``, or a list of one flag. Equal on these ranks.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return found
    wrapper = next((w for parameter in parameters if (w := _wrapped.get(parameter)) is not None), None)
    if wrapper is None or _uneven(wrapper) or dist.get_world_size(wrapper.group) == 1:
        return found
    flag = torch.zeros((), dtype=torch.float32, device=flag_device(found[0].device if found else None))
    for own in found:
        flag += own.to(flag.device)
    dist.all_reduce(flag, dist.ReduceOp.MAX, group=wrapper.group)
    return [flag]


def _uneven(wrapper: _WrappedBy) -> bool:
    """Whether torch's ``join`` lets ranks stop early; DDP has shared the infinities in that case."""
    module = wrapper.module() if wrapper.module is not None else None
    return bool(getattr(getattr(module, "_join_config", None), "enable", False))
