"""Which parts of a model can be exported: the whole, or else the largest parts of it that can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from amp_runtime._quantizing.calibration import Call, at_least_two
from amp_runtime._quantizing.exported import export, fixed_batch

KERNELS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers that are worth a part of their own."""


class Piece:
    """A part of a model that was exported.

    Attributes:
        name: of the part in the model; empty for the whole.
        program: what ``torch.export`` made of it.
        call: the arguments with which it was exported.
    """

    def __init__(self, name: str, program: Any, call: Call) -> None:
        self.name, self.program, self.call = name, program, call


def exportable(model: nn.Module, call: Call, left: dict[str, str]) -> list[Piece]:
    """The largest parts of ``model`` that can be exported; what cannot is added to ``left`` with the reason."""
    whole, reason = _try(model, "", at_least_two(call))
    if whole is not None:
        return [whole]
    calls = _calls_of_parts(model, call)
    return list(_below(model, "", reason, calls, left))


def _below(
    module: nn.Module, name: str, reason: str, calls: dict[str, list[Call]], left: dict[str, str]
) -> Iterator[Piece]:
    """The parts below a module that cannot be exported itself."""
    left.update({_join(name, own): reason for own, p in module.named_parameters(recurse=False) if p.dim() > 1})
    for child_name, child in module.named_children():
        path = _join(name, child_name)
        if not any(isinstance(m, KERNELS) for m in child.modules()):
            left.update({f"{path}.{own}": reason for own, p in child.named_parameters() if p.dim() > 1})
            continue
        found, why = None, "it is not called as a module"
        if len({_kind(call) for call in calls.get(path, [])}) > 1:
            why = "it is called with arguments of different kinds"
        elif calls.get(path):
            found, why = _try(child, path, at_least_two(calls[path][0]))
        if found is not None:
            yield found
        else:
            yield from _below(child, path, why, calls, left)


def _try(module: nn.Module, name: str, call: Call) -> tuple[Piece | None, str]:
    try:
        with torch.no_grad():
            return Piece(name, export(module, call), call), ""
    except Exception as error:  # of any kind: whatever the model's own code does under export
        return None, f"cannot be exported: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


def _calls_of_parts(model: nn.Module, call: Call) -> dict[str, list[Call]]:
    """How each part is called while the model computes one batch."""
    calls: dict[str, list[Call]] = {}
    hooks = []
    for name, module in model.named_modules():

        def note(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            calls.setdefault(name, []).append((args, kwargs))

        hooks.append(module.register_forward_pre_hook(note, with_kwargs=True))
    try:
        with torch.no_grad():
            model(*call[0], **call[1])
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _kind(value: Any) -> Any:
    """What two calls have in common that one exported graph serves: kinds of tensors, and all other values."""
    if isinstance(value, torch.Tensor):
        return torch.Tensor, value.dtype, value.dim()
    if isinstance(value, Mapping):
        return type(value), *((key, _kind(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), *map(_kind, value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else id(value)


def _join(name: str, own: str) -> str:
    return f"{name}.{own}" if name else own


def batch_of(piece: Piece) -> int | None:
    """The only number of samples that a part takes; None if it takes any."""
    return fixed_batch(piece.program)
