"""FP32 master copies of half-precision parameters, for O2.

The optimizer keeps the script's half parameters in its groups. For the length of a step they are exchanged
for their masters, so small updates are not lost to rounding and the optimizer's state is FP32.

What the script writes into the half weights, the masters take over at the next step or ``state_dict``; what it
writes into the masters, the half weights take over then, or at the next forward pass that is not compiled. Where
both were written, the master counts. A write is known by the tensor's version, and values are compared only after one:
so a step costs no look at the weights. ``.data`` leaves no trace in the version; that it was read does, from the first
half weight with a master on (:func:`_note_data`). Writing into a master through it is not seen.
"""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from amp_runtime._core.context import HALF_DTYPES
from amp_runtime._core.registry import TensorMap
from amp_runtime._precision.shared_gradient import SharedGradient, make_half_again


@dataclass
class _Master:
    """A master and what it last had to do with its parameter.

    Attributes:
        tensor: the float32 master.
        version: its version when the parameter was last rounded from it.
        gradient: what is known about its gradient.
        exposed: whether the script may hold the master, to edit it.
        rounded: the version of the parameter when it was last rounded from the master; -1 if that tells nothing.
        aliases: what ``parameter.data`` gave out since.
    """

    tensor: torch.Tensor
    version: int = 0
    gradient: SharedGradient = field(default_factory=SharedGradient)
    exposed: bool = False
    rounded: int = -1
    aliases: list[weakref.ref[torch.Tensor]] = field(default_factory=list)

    def note(self, parameter: torch.Tensor) -> None:
        """Notes that the parameter is the rounded master now."""
        self.version = self.tensor._version
        followed = isinstance(parameter, torch.nn.Parameter) and _follows_data()
        self.rounded = parameter._version if followed else -1
        if self.aliases:
            self.aliases = [alias for alias in self.aliases if alias() is not None]

    def is_current(self, parameter: torch.Tensor) -> bool:
        """Whether nobody can have written into the parameter since then."""
        return parameter._version == self.rounded and not self.aliases


_masters: TensorMap[_Master] = TensorMap()
_exposed: TensorMap[_Master] = TensorMap()
_copies: TensorMap[tuple[torch.Tensor, int]] = TensorMap()
_to_return: TensorMap[bool] = TensorMap()


def adopt(parameter: torch.Tensor, full: torch.Tensor) -> None:
    """Makes a float32 copy of ``full`` the master of a half ``parameter``, which is or was rounded from it.

    From then on pickling the parameter pickles the master, so that a model saved whole is a float32 model.
    """
    master = full.detach().to(torch.float32, copy=True).requires_grad_(parameter.requires_grad)
    _masters[parameter] = _Master(master, master._version)
    if not _follows_data():
        torch.nn.Parameter.data = property(_note_data, _set_data)  # type: ignore[assignment]
    if type(parameter) in (torch.nn.Parameter, torch.Tensor):
        parameter.__reduce_ex__ = _PickledInFull(parameter)  # type: ignore[method-assign]


def forget(parameter: torch.Tensor) -> None:
    """Makes a parameter that is not half any more an ordinary one."""
    _masters.pop(parameter)
    parameter.__dict__.pop("__reduce_ex__", None)


def stop_following() -> None:
    """Gives ``Parameter.data`` back to torch; ``amp.shutdown`` does it, after which no step is followed."""
    if _follows_data():
        del torch.nn.Parameter.data
        for _, entry in _masters.items():
            entry.rounded = -1


def _follows_data() -> bool:
    return "data" in vars(torch.nn.Parameter)


def _note_data(parameter: torch.Tensor) -> torch.Tensor:
    """``parameter.data``, with a note of it where there is a master: the script may write through it at any time."""
    value: torch.Tensor = torch.Tensor.data.__get__(parameter)  # type: ignore[attr-defined]
    entry = _masters.get(parameter)
    if entry is not None:
        entry.aliases.append(weakref.ref(value))
    return value


def _set_data(parameter: torch.Tensor, value: torch.Tensor) -> None:
    torch.Tensor.data.__set__(parameter, value)  # type: ignore[attr-defined]
    entry = _masters.get(parameter)
    if entry is not None:
        entry.rounded = -1


def has_master(parameter: torch.Tensor) -> bool:
    """Whether ``parameter`` has a master."""
    return parameter in _masters


def has_masters(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer steps any parameter that has a master."""
    return bool(_masters) and any(p in _masters for group in optimizer.param_groups for p in group["params"])


def master_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """The master of a half parameter or buffer, up to date with what the script wrote into either.

    ``None`` if there is none, also for a parameter that is not half any more.
    """
    entry = _masters.get(parameter)
    if entry is None or parameter.dtype not in HALF_DTYPES:
        return None
    with torch.no_grad():
        _place(parameter, entry)
        if entry.tensor._version != entry.version:
            _round(parameter, entry)
        elif not entry.is_current(parameter):
            _follow_edits([(parameter, entry)])
    return entry.tensor


def stepped_master(parameter: torch.Tensor) -> torch.Tensor | None:
    """The master of ``parameter`` as the last step left it, which needs no look at the half weights."""
    entry = _masters.get(parameter)
    return entry.tensor if entry is not None and parameter.dtype in HALF_DTYPES else None


def master_params(optimizer: Any) -> Iterator[torch.Tensor]:
    """The float32 parameters that an optimizer updates: masters at O2, the parameters themselves otherwise.

    After ``amp.scaler.unscale_(optimizer)`` their ``grad`` is the true gradient in float32, and what is done to
    it is what the step uses: ``torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)``. It is the
    tensor that the model's own parameters show then, so clipping ``model.parameters()`` does the same. Values
    that are written into a master reach the model with the next forward pass or step, except through ``.data``.

    Args:
        optimizer: an optimizer, or an object with its ``param_groups``.

    Yields:
        One tensor for each parameter, in the order of the groups; float32 where the parameter is half and has a
        master.

    Raises:
        TypeError: ``optimizer`` has no ``param_groups``.

    Source:
        ``apex.amp.master_params``: https://nvidia.github.io/apex/advanced.html#gradient-clipping
    """
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(f"amp.master_params got {type(optimizer).__name__}; allowed: an optimizer with param_groups")
    return _master_params(optimizer)


def _master_params(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            entry = _masters.get(parameter)
            if entry is None:
                yield parameter
                continue
            master_of(parameter)
            _expose(parameter, entry)
            entry.gradient.settle(parameter, entry.tensor)
            _show_gradient(parameter, entry)
            yield entry.tensor


def expose(parameter: torch.Tensor) -> torch.Tensor | None:
    """The master of ``parameter`` for a script that may edit it in place; see :func:`follow_masters`."""
    master, entry = master_of(parameter), _masters.get(parameter)
    if master is not None and entry is not None:
        _expose(parameter, entry)
    return master


def copy_of(parameter: torch.Tensor) -> torch.Tensor:
    """A float32 copy of a half tensor without a master; what is written into it before the next forward counts."""
    full, version = _copies.get(parameter) or (None, 0)
    with torch.no_grad():
        if full is None:
            full = parameter.detach().float()
        elif full._version != version:
            parameter.copy_(full)
        else:
            full.copy_(parameter)
    _copies[parameter] = (full, full._version)
    return full


def _expose(parameter: torch.Tensor, entry: _Master) -> None:
    if not entry.exposed:
        entry.exposed = True
        _exposed[parameter] = entry


def assign(parameter: torch.Tensor, full: torch.Tensor) -> None:
    """Writes float32 values of the same shape, from a checkpoint, into the master and rounds them."""
    entry = _masters.get(parameter)
    if entry is not None:
        with torch.no_grad():
            _place(parameter, entry)
            entry.tensor.copy_(full)
            _round(parameter, entry)


def follow_masters() -> None:
    """Rounds again the masters that the script edited in place, through a state dict or ``master_params``."""
    if not (_exposed or _copies):
        return
    with torch.no_grad():
        for parameter, entry in _exposed.items():
            if entry.tensor._version != entry.version:
                _round(parameter, entry)
        for parameter, (full, version) in _copies.items():
            if full._version != version:
                parameter.copy_(full)
    _copies.clear()


def take_gradients(optimizer: torch.optim.Optimizer) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Copies half gradients to the masters in float32; returns (parameter, master) of those that have one."""
    return [(p, entry.tensor) for p, entry in _entries(optimizer) if entry.gradient.take(p, entry.tensor)]


def mark_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Makes parameters show their masters' gradients, which have their true values now."""
    for parameter, entry in _entries(optimizer):
        _show_gradient(parameter, entry)


def return_gradients() -> None:
    """Gives parameters half gradients again, which torch DDP insists on, before they are accumulated further."""
    for parameter, _ in _to_return.items():
        make_half_again(parameter)
    _to_return.clear()


@contextmanager
def exchanged(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Puts masters in the place of their parameters for one step, then rounds the result back."""
    used, in_ddp = list(_entries(optimizer)), _may_be_in_ddp()
    with torch.no_grad():
        untouched = []
        for parameter, entry in used:
            _place(parameter, entry)
            entry.gradient.settle(parameter, entry.tensor)
            # A master that the script edited wins.
            if entry.tensor._version == entry.version and not entry.is_current(parameter):
                untouched.append((parameter, entry))
        _follow_edits(untouched)
    try:
        with standing_in(optimizer):
            yield
    finally:
        for parameter, entry in used:
            entry.gradient.forget()
            entry.tensor.grad = None
            if in_ddp:
                make_half_again(parameter)
        with torch.no_grad():
            if used:
                torch._foreach_copy_([parameter for parameter, _ in used], [entry.tensor for _, entry in used])
        for parameter, entry in used:
            entry.note(parameter)


def _may_be_in_ddp() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _entries(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, _Master]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            entry = _masters.get(parameter)
            if entry is not None:
                yield parameter, entry


@contextmanager
def standing_in(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """The optimizer's groups and state hold masters inside; also groups that are made anew meanwhile.

    So do those of an optimizer that it wraps, as Lookahead and SAM do: that one makes the step.
    """
    pairs = [(parameter, entry.tensor) for parameter, entry in _entries(optimizer)]
    optimizers = _with_wrapped(optimizer)
    groups = _groups_of(optimizers)
    _substitute(optimizers, groups, pairs)
    try:
        yield
    finally:  # a wrapper keeps the old groups where the wrapped optimizer has new ones
        groups += _groups_of(optimizers)
        _substitute(optimizers, groups, [(master, parameter) for parameter, master in pairs])


def _with_wrapped(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizer, and the optimizers in its attributes and in theirs."""
    found = [optimizer]
    for one in found:
        for value in vars(one).values():
            if isinstance(value, torch.optim.Optimizer) and all(value is not known for known in found):
                found.append(value)
    return found


def _groups_of(optimizers: list[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def _substitute(
    optimizers: list[torch.optim.Optimizer],
    groups: list[dict[str, Any]],
    pairs: list[tuple[torch.Tensor, torch.Tensor]],
) -> None:
    new = {id(old): tensor for old, tensor in pairs}
    for group in groups:
        group["params"] = [new.get(id(parameter), parameter) for parameter in group["params"]]
    for optimizer in optimizers:
        for old, tensor in pairs:
            if old in optimizer.state:
                _rekey(optimizer.state, old, tensor)


def _rekey(held: Any, old: torch.Tensor, tensor: torch.Tensor) -> None:
    state = held[tensor] = held.pop(old)
    for key, value in state.items():  # some optimizers make it as they are built, of the half parameters
        if isinstance(value, torch.Tensor) and value.dtype in HALF_DTYPES and tensor.dtype is torch.float32:
            state[key] = value.float()


def _place(parameter: torch.Tensor, entry: _Master) -> None:
    """Follows the parameter to another device, and into another shape."""
    if entry.tensor.device != parameter.device:
        entry.tensor.data = entry.tensor.data.to(parameter.device)
    if entry.tensor.shape != parameter.shape:
        entry.tensor.data = parameter.detach().to(torch.float32, copy=True)


def _round(parameter: torch.Tensor, entry: _Master) -> None:
    parameter.copy_(entry.tensor)
    entry.note(parameter)


def _show_gradient(parameter: torch.Tensor, entry: _Master) -> None:
    if entry.gradient.show(parameter, entry.tensor) and _may_be_in_ddp():
        _to_return[parameter] = True


def _follow_edits(pairs: list[tuple[torch.Tensor, _Master]]) -> None:
    for place in follow_edits([(parameter, entry.tensor) for parameter, entry in pairs]):
        entry = pairs[place][1]
        entry.version = entry.tensor._version


def follow_edits(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[int]:
    """Takes over what was written into half weights: clipped weights, for instance. Waits for the device.

    Elements that are still their master's rounded value keep the master.

    Args:
        pairs: half parameters, with their masters.

    Returns:
        The places of the pairs that differed.
    """
    places = [place for place, (parameter, _) in enumerate(pairs) if parameter.numel()]
    if not places:
        return []
    rounded = [torch.empty_like(pairs[place][0]) for place in places]
    torch._foreach_copy_(rounded, [pairs[place][1] for place in places])
    current = [pairs[place][0].detach() for place in places]
    differ = _differ_one_by_one if all(parameter.device.type == "cpu" for parameter in current) else _differ_at_once
    found = [place for place, edited in zip(places, differ(rounded, current), strict=True) if edited]
    for place in found:
        parameter, master = pairs[place]
        torch.where(master.to(parameter.dtype) == parameter, master, parameter.float(), out=master)
    return found


def _differ_one_by_one(some: list[torch.Tensor], others: list[torch.Tensor]) -> list[bool]:
    """Which tensors differ from one another; half compares slowly on the CPU."""
    return [not torch.equal(_bits(one), _bits(other)) for one, other in zip(some, others, strict=True)]


def _differ_at_once(some: list[torch.Tensor], others: list[torch.Tensor]) -> list[bool]:
    """The same in a few kernels and with one wait for the device; ``some`` are overwritten."""
    torch._foreach_sub_(some, others)
    largest = torch._foreach_norm(some, float("inf"))
    differs: list[bool] = (torch.stack([value.to(largest[0].device, torch.float32) for value in largest]) != 0).tolist()
    return differs


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16) if tensor.element_size() == 2 else tensor


class _PickledInFull:
    """A half tensor's ``__reduce_ex__``, which pickles its master instead."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = weakref.ref(tensor)

    def __call__(self, protocol: Any) -> Any:
        tensor = self._tensor()
        assert tensor is not None
        master = master_of(tensor)
        if master is None:
            forget(tensor)  # it is float32 again, and this object cannot be pickled
            return type(tensor).__reduce_ex__(tensor, protocol)  # type: ignore[no-untyped-call]
        if not isinstance(tensor, torch.nn.Parameter):
            return torch.Tensor.__reduce_ex__(master.detach(), protocol)  # type: ignore[no-untyped-call]
        return torch._utils._rebuild_parameter, (master.detach(), tensor.requires_grad, OrderedDict())

    def __deepcopy__(self, memo: dict[int, Any]) -> _PickledInFull:
        return copy.copy(self)
