"""Gradients in a few flat buffers, which are unscaled, measured and averaged as one tensor each.

As ``combine_grad`` and ``combine_ddp`` of Ascend's version of Apex do. It pays with many small parameters, and only if
the buffers survive: ``optimizer.zero_grad(set_to_none=False)`` keeps them, while gradients that were set to ``None``
are made anew by the next backward pass and have to be copied in. Parameters with float32 masters are left out: their
gradients are copied for the masters anyway. So are those of torch's DDP, which has such buffers itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from amp_runtime._core.context import context
from amp_runtime._distributed import averaging
from amp_runtime._precision import masters
from amp_runtime._scaling.gradients import coalesced_gradients_of

_log = logging.getLogger("amp_runtime")


@dataclass
class _Flat:
    """One buffer, and the gradients in it.

    Attributes:
        storage: the buffer, and behind it a number for each gradient that says whether it exists: they travel together.
        buffer: the gradients.
        parameters: theirs.
        views: the place of each in the buffer.
        exist: that of each number.
    """

    storage: torch.Tensor
    buffer: torch.Tensor
    parameters: list[torch.Tensor]
    views: list[torch.Tensor]
    exist: list[torch.Tensor]

    def gather(self) -> list[int]:
        """Copies gradients in that are elsewhere; returns the places of those that do not exist."""
        sources, targets, absent = [], [], []
        for place, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
            gradient = parameter.grad
            if gradient is None:
                absent.append(place)
            elif gradient is not view:
                sources.append(gradient.to_dense() if gradient.is_sparse else gradient)
                targets.append(view)
                parameter.grad = view
        if sources:
            torch._foreach_copy_(targets, sources)
        self.storage[self.buffer.numel() :] = 1.0
        if absent:  # else an infinity of an earlier step would be found again
            torch._foreach_zero_([part[place] for part in (self.views, self.exist) for place in absent])
        return absent

    def take_over(self, absent: list[int]) -> None:
        """Gives parameters without a gradient the averaged one, where another rank had one. Waits for the device."""
        exist = self.storage[self.buffer.numel() :].tolist() if absent else []
        for place in absent:
            if exist[place]:
                self.parameters[place].grad = self.views[place]


class CombinedGradients:
    """The flat buffers of one optimizer, one for each device and dtype.

    Args:
        eligible: the parameters whose gradients may be moved. Those that are sparse or complex, or do not exist when
            the buffers are made at the first step, stay where they are.
    """

    def __init__(self, eligible: Iterable[torch.Tensor]) -> None:
        self._eligible = list(eligible)
        self._flats: list[_Flat] | None = None
        self._members: set[int] = set()

    def gather(self, parameters: list[torch.Tensor]) -> None:
        """Moves the gradients of an optimizer's ``parameters`` into the buffers."""
        with torch.no_grad():
            if self._flats is None or not self._fits():
                self._build()
            for flat in self._flats or ():
                flat.gather()

    def whole(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """The buffers, and the gradients of ``parameters`` that are in none of them."""
        buffers = [flat.buffer for flat in self._flats or ()]
        loose = [p for p in parameters if id(p) not in self._members or (p.grad is not None and p.grad.is_sparse)]
        return [*buffers, *coalesced_gradients_of(loose)]

    def holds(self, parameters: list[torch.Tensor]) -> bool:
        """Whether the buffers hold the gradients of all of ``parameters`` and of no other, now."""
        flats = self._flats or ()
        return {id(parameter) for parameter in parameters} == self._members and all(
            parameter.grad is view
            for flat in flats
            for parameter, view in zip(flat.parameters, flat.views, strict=True)
        )

    def average(self, delayed: list[torch.Tensor]) -> bool:
        """Averages the buffers over the processes, if that is all there is to average. A collective.

        Args:
            delayed: the parameters whose gradients are to be averaged.

        Returns:
            Whether it was done, equal on all ranks: the buffers are made after the first step's gradients were
            averaged one by one, and so hold the same everywhere.
        """
        if self._flats is None or not self._fits() or {id(p) for p in delayed} != self._members:
            return False
        if not averaging.travel_plainly(delayed):
            return False
        with torch.no_grad():
            absent = [flat.gather() for flat in self._flats]
            averaging.average_tensors([flat.storage for flat in self._flats])
            for flat, places in zip(self._flats, absent, strict=True):
                flat.take_over(places)
        return True

    def _fits(self) -> bool:
        """Whether the model has stayed on its device and in its type."""
        return all(
            flat.parameters[0].device == flat.buffer.device and flat.parameters[0].dtype is flat.buffer.dtype
            for flat in self._flats or ()
        )

    def _build(self) -> None:
        groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for parameter in {id(p): p for p in self._eligible}.values():
            gradient = parameter.grad
            plain = gradient is not None and gradient.layout is torch.strided and not gradient.is_complex()
            if plain and gradient is not None and gradient.dtype is parameter.dtype:
                groups.setdefault((parameter.device, parameter.dtype), []).append(parameter)
        self._flats = [_flat(parameters) for parameters in groups.values()]
        self._members = {id(parameter) for flat in self._flats for parameter in flat.parameters}


def _flat(parameters: list[torch.Tensor]) -> _Flat:
    first = parameters[0]
    size = sum(p.numel() for p in parameters)
    storage = torch.zeros(size + len(parameters), dtype=first.dtype, device=first.device)
    views, offset = [], 0
    for parameter in parameters:
        # A gradient laid out as its parameter is what fused optimizers and DDP want.
        dense = parameter.is_contiguous() or torch.empty_like(parameter, device="meta").stride() == parameter.stride()
        strides = parameter.stride() if dense else torch.empty(parameter.shape, device="meta").stride()
        views.append(storage.as_strided(parameter.shape, strides, offset))
        offset += parameter.numel()
    return _Flat(storage, storage[:size], parameters, views, list(storage[size:].unbind()))


def advise_merging(optimizer: torch.optim.Optimizer) -> None:
    """Logs once which parameter groups of an optimizer have equal options and could be one.

    Optimizers run their kernels group by group, so that many small groups take longer than one large.
    """
    seen: list[dict[str, Any]] = []
    equal: list[list[int]] = []
    for index, group in enumerate(optimizer.param_groups):
        options = {key: value for key, value in group.items() if key not in ("params", "param_names", "name")}
        for other, members in zip(seen, equal, strict=True):
            if _same(options, other):
                members.append(index)
                break
        else:
            seen.append(options)
            equal.append([index])
    mergeable = [members for members in equal if len(members) > 1]
    if mergeable:
        _log.warning(
            "%s has %d parameter groups, of which %s have equal options: merged into one group each they step faster",
            type(optimizer).__name__,
            len(optimizer.param_groups),
            " and ".join(f"{len(members)} ({_shortened(members)})" for members in mergeable),
        )


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if one.keys() != other.keys():
        return False
    for key, value in one.items():
        tensors = isinstance(value, torch.Tensor) or isinstance(other[key], torch.Tensor)
        if value is not other[key] and (tensors or value != other[key]):
            return False
    return True


def _shortened(members: list[int]) -> str:
    shown = ", ".join(map(str, members[:5]))
    return shown + (", ..." if len(members) > 5 else "")


def combined_of(
    record: Any, parameters: list[torch.Tensor], delayed: list[torch.Tensor], process_group: Any
) -> CombinedGradients:
    """The flat buffers of an optimizer's gradients, which are made when they are first asked for.

    Args:
        record: what the scaler knows about the optimizer.
        parameters: its parameters.
        delayed: those of them whose gradients are averaged at the step.
        process_group: the group that the script has chosen.
    """
    if record.combined is None:
        ranks = record.ranks(parameters, process_group)
        # DDP keeps gradients in buffers of its own.
        wrapped = context.distributed or (ranks is not None and ranks.models)
        eligible = delayed if wrapped else parameters
        record.combined = CombinedGradients([p for p in eligible if not masters.has_master(p)])
    combined: CombinedGradients = record.combined
    return combined
