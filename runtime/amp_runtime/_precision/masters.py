"""FP32 master copies of half-precision parameters, for O2.

The optimizer keeps the script's half parameters in its groups. For the length of a step they are exchanged
for their masters, so small updates are not lost to rounding and the optimizer's state is FP32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from amp_runtime._core.registry import TensorMap


@dataclass
class _Master:
    tensor: torch.Tensor
    grad_version: int = -1


_masters: TensorMap[_Master] = TensorMap()


def adopt(parameter: torch.Tensor, full: torch.Tensor) -> None:
    """Makes a float32 copy of ``full`` the master of a half ``parameter``, which is or was rounded from it."""
    master = full.detach().to(torch.float32, copy=True).requires_grad_(parameter.requires_grad)
    _masters[parameter] = _Master(master)


def has_master(parameter: torch.Tensor) -> bool:
    """Whether ``parameter`` has a master."""
    return parameter in _masters


def has_masters(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer steps any parameter that has a master."""
    return bool(_masters) and any(p in _masters for group in optimizer.param_groups for p in group["params"])


def take_gradients(optimizer: torch.optim.Optimizer) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Copies half gradients to the masters in float32; returns (parameter, master) of those that have one."""
    pairs = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            entry = _masters.get(parameter)
            if entry is not None and parameter.grad is not None:
                entry.tensor.grad = parameter.grad.detach().to(entry.tensor.dtype, copy=True)
                pairs.append((parameter, entry.tensor))
    return pairs


def mark_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Remembers the state of the half gradients, to see later whether the script edited (clipped) them."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            entry = _masters.get(parameter)
            if entry is not None:
                entry.grad_version = -1 if parameter.grad is None else parameter.grad._version


@contextmanager
def exchanged(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Puts masters in the place of their parameters for one step, then rounds the result back."""
    originals = [list(group["params"]) for group in optimizer.param_groups]
    used: list[tuple[torch.Tensor, _Master]] = []
    for group, parameters in zip(optimizer.param_groups, originals, strict=True):
        chosen = []
        for parameter in parameters:
            entry = _masters.get(parameter)
            if entry is None:
                chosen.append(parameter)
                continue
            _refresh(parameter, entry)
            if parameter in optimizer.state:
                optimizer.state[entry.tensor] = optimizer.state.pop(parameter)
            used.append((parameter, entry))
            chosen.append(entry.tensor)
        group["params"] = chosen
    pairs = [(parameter, entry.tensor) for parameter, entry in used]
    with torch.no_grad():
        _follow_edits(pairs)
    try:
        yield
    finally:
        for group, parameters in zip(optimizer.param_groups, originals, strict=True):
            group["params"] = parameters
        with torch.no_grad():
            for parameter, entry in used:
                if entry.tensor in optimizer.state:
                    optimizer.state[parameter] = optimizer.state.pop(entry.tensor)
                entry.tensor.grad = None
            if pairs:
                torch._foreach_copy_([parameter for parameter, _ in pairs], [master for _, master in pairs])


def _refresh(parameter: torch.Tensor, entry: _Master) -> None:
    if entry.tensor.device != parameter.device:
        entry.tensor.data = entry.tensor.data.to(parameter.device)
    edited = parameter.grad is not None and parameter.grad._version != entry.grad_version
    if parameter.grad is None:
        entry.tensor.grad = None
    elif edited or entry.tensor.grad is None:
        entry.tensor.grad = parameter.grad.detach().to(entry.tensor.dtype, copy=True)


def _follow_edits(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Takes over what was written into the half weights since the last step: a checkpoint, clipped weights.

    Values are compared, because ``p.data.clamp_()`` leaves no other trace. Elements that are still their
    master's rounded value keep the master.
    """
    pairs = [(parameter, master) for parameter, master in pairs if parameter.numel()]
    if not pairs:
        return
    parameters, masters = map(list, zip(*pairs, strict=True))
    on_cpu = all(parameter.device.type == "cpu" for parameter in parameters)
    edited = (_edited_one_by_one if on_cpu else _edited_at_once)(parameters, masters)
    for parameter, master, changed in zip(parameters, masters, edited, strict=True):
        if changed:
            torch.where(master.to(parameter.dtype) == parameter, master, parameter.float(), out=master)


def _edited_one_by_one(parameters: list[torch.Tensor], masters: list[torch.Tensor]) -> list[bool]:
    """Which parameters differ from their rounded masters."""
    return [not torch.equal(_bits(m.to(p.dtype)), _bits(p)) for p, m in zip(parameters, masters, strict=True)]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16) if tensor.element_size() == 2 else tensor  # half compares slowly on the CPU


def _edited_at_once(parameters: list[torch.Tensor], masters: list[torch.Tensor]) -> list[bool]:
    """The same in a few kernels and with one wait for the device."""
    differences = [torch.empty_like(parameter) for parameter in parameters]
    torch._foreach_copy_(differences, masters)
    torch._foreach_sub_(differences, parameters)
    largest = torch._foreach_norm(differences, float("inf"))
    flags = torch.stack([value.to(largest[0].device, torch.float32) for value in largest]) != 0
    edited: list[bool] = flags.tolist()
    return edited
