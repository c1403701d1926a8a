"""Buffers that a forward pass writes: after each step every rank has those of rank 0.

Running statistics, codebooks, queues and masks are written from a rank's own batch. torch's DistributedDataParallel
sends rank 0's before each forward pass of its wrapper. Here they are sent when an optimizer has stepped, which all
ranks do equally often: so it also holds for models without a wrapper, a rank may run a forward pass alone, and whatever
reads them after a step (evaluation, a checkpoint, the end of training) finds the same everywhere.

A model without buffers, or with those of synchronised batch norm alone, exchanges nothing. For others the ranks first
agree in a few bytes on whether anything was written and whether their buffers have the same layout. That decision is
made of what all ranks have reduced, so none of them waits for one that does not come.
"""

from __future__ import annotations

import dis
import hashlib
import sys
import weakref
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.optimizer import register_optimizer_step_post_hook

from amp_runtime._core.context import context
from amp_runtime._core.registry import TensorMap
from amp_runtime._distributed.batchnorm import SyncBatchNorm
from amp_runtime._distributed.exchange import as_bytes
from amp_runtime._distributed.group import flag_device, from_all_processes

_HIDING = frozenset({"data", "numpy", "storage", "untyped_storage", "set_", "batch_norm", "instance_norm"})
"""What code names that can write a tensor without its version counting it."""


class _Buffer(NamedTuple):
    """One buffer.

    Attributes:
        serial: the number of its model.
        place: the number of its module in the model.
        name: its name there.
        counted: whether its version tells of every write.
        tensor: the buffer itself.
    """

    serial: int
    place: int
    name: str
    counted: bool
    tensor: torch.Tensor

    @property
    def layout(self) -> tuple[Any, ...]:
        """What has to be the same on all ranks."""
        tensor = self.tensor
        return self.serial, self.place, self.name, tuple(tensor.shape), str(tensor.dtype), tensor.device.type


class _Watched:
    """What is known of a prepared model: its number among them, and at which step it was trained last.

    A loss that keeps a centre has no parameters, and belongs to every step.
    """

    def __init__(self, serial: int, trained: bool) -> None:
        self.serial = serial
        self.trained = trained
        self.stepped = -1


class _Trainer:
    """What is known of an optimizer: how many parameters it had, its models, and when it stepped last."""

    def __init__(self, size: int, models: list[_Watched], stepped: int) -> None:
        self.size = size
        self.models = models
        self.stepped = stepped


_watched: weakref.WeakKeyDictionary[nn.Module, _Watched] = weakref.WeakKeyDictionary()
_trainers: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Trainer] = weakref.WeakKeyDictionary()
_steps = 0
_versions: TensorMap[int] = TensorMap()
_handle: Any = None
_made = 0
_hash: tuple[list[tuple[Any, ...]], int] = ([], 0)


def watch(model: nn.Module, *, equal: bool = True) -> None:
    """Keeps the buffers of a prepared model in step from here on; ``equal`` says that they are so on all ranks now."""
    global _handle, _made
    _made += 1
    _watched[model] = _Watched(_made, next(model.parameters(), None) is not None)
    for buffer in _buffers([model]) if equal else ():
        _versions[buffer.tensor] = buffer.tensor._version
    if _handle is None:
        _handle = register_optimizer_step_post_hook(_after_step)


def stop_watching() -> None:
    """Forgets every model; ``amp.shutdown`` does it."""
    global _handle, _made, _steps
    if _handle is not None:
        _handle.remove()
    _handle, _made, _steps = None, 0, 0
    _watched.clear()
    _trainers.clear()
    _versions.clear()


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    after_step(optimizer)


def after_step(optimizer: torch.optim.Optimizer) -> None:
    """Brings buffers in step after a step of this optimizer, made or skipped, if it trains a prepared model.

    These are the buffers of its models, and of those that have been trained since its last step: a generator's step
    runs the discriminator too. A model whose training has ended is left alone.
    """
    global _steps
    if not context.distributed or not _watched:
        return
    trainer = _trainer(optimizer)
    if not trainer.models:
        return  # of a probe, say, which may belong to one rank alone
    _steps += 1
    for entry in trainer.models:
        entry.stepped = _steps
    since, trainer.stepped = trainer.stepped, _steps
    _bring_in_step([model for model, entry in _watched.items() if entry.stepped >= since or not entry.trained])


def _trainer(optimizer: torch.optim.Optimizer) -> _Trainer:
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    known = _trainers.get(optimizer)
    if known is None or known.size != len(held):
        held_ids = set(held)
        own = [entry for model, entry in _watched.items() if any(id(p) in held_ids for p in model.parameters())]
        known = _trainers[optimizer] = _Trainer(len(held), own, _steps + 1 if known is None else known.stepped)
    return known


def _bring_in_step(models: list[nn.Module]) -> None:
    """Gives every rank rank 0's buffers, if one was written. A collective."""
    if not any(_may_hold_buffers(module) for model in models for module in model.modules()):
        return
    found = list(_buffers(models))
    written = any(not item.counted or _versions.get(item.tensor) != item.tensor._version for item in found)
    number = _number_of([item.layout for item in found])
    flags = torch.tensor([number, -number, int(written)], device=flag_device())
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    largest, smallest, anywhere = flags.tolist()
    if not anywhere:
        return
    if largest != -smallest:
        # A cache that has grown on one rank, for a longer sentence: what all have alike is still sent.
        layouts = from_all_processes([item.layout for item in found])
        alike = set(layouts[0]).intersection(*layouts[1:])
        found = [item for item in found if item.layout in alike]
    _send(found)
    for item in found:
        _versions[item.tensor] = item.tensor._version


def _may_hold_buffers(module: nn.Module) -> bool:
    """Whether it has buffers to send on any rank: a mask that a long sentence brings may not be here yet."""
    if isinstance(module, (SyncBatchNorm, nn.SyncBatchNorm)):
        return False
    kind = type(module)
    if any(tensor is not None for tensor in module._buffers.values()):
        return True
    return bool(module._buffers and not kind.__module__.startswith("torch.")) or _registers_late(kind)


def _buffers(models: list[nn.Module]) -> Iterator[_Buffer]:
    """The buffers that a forward pass may write and that are not equal anyway, each once, alike on all ranks."""
    seen: set[int] = set()
    for serial, model in sorted(((_watched[model].serial, model) for model in models), key=lambda item: item[0]):
        for place, module in enumerate(model.modules()):
            if not module._buffers or isinstance(module, (SyncBatchNorm, nn.SyncBatchNorm)):
                continue
            counted = _counts_writes(type(module))
            for name, tensor in module._buffers.items():
                if tensor is None or id(tensor) in seen or tensor.is_meta or tensor.layout is not torch.strided:
                    continue
                seen.add(id(tensor))
                if not (tensor.is_inference() or tensor.is_quantized):
                    yield _Buffer(serial, place, name, counted, tensor)


def _number_of(layouts: list[tuple[Any, ...]]) -> int:
    """A number for the layouts, the same on every rank that has the same ones."""
    global _hash
    if _hash[0] != layouts:
        _hash = layouts, int.from_bytes(hashlib.sha256(repr(layouts).encode()).digest()[:7], "big")
    return _hash[1]


def _send(buffers: list[_Buffer]) -> None:
    """Broadcasts them, in one message for each kind of device."""
    # The widest first, so that each begins where its type may begin.
    tensors = [item.tensor for item in sorted(buffers, key=lambda item: -item.tensor.element_size())]
    with torch.no_grad():
        for kind in sorted({tensor.device.type for tensor in tensors}):
            group = [tensor for tensor in tensors if tensor.device.type == kind]
            box = flag_device(group[0].device)
            flat = torch.cat([as_bytes(tensor).to(box) for tensor in group])
            dist.broadcast(flat, src=0)
            if context.rank == 0:
                continue
            start = 0
            for tensor in group:
                size = tensor.numel() * tensor.element_size()
                if size:
                    tensor.detach().copy_(flat[start : start + size].view(tensor.dtype).view(tensor.shape))
                start += size


_registering: dict[type, bool] = {}


def _registers_late(kind: type) -> bool:
    """Whether a method other than the constructor gives such modules buffers."""
    known = _registering.get(kind)
    if known is None:
        methods = [
            getattr(value, "__func__", value)
            for base in kind.__mro__
            if base.__module__ != "builtins" and not base.__module__.startswith("torch.")
            for name, value in vars(base).items()
            if name != "__init__"
        ]
        codes = (method.__code__ for method in methods if isinstance(method, FunctionType))
        known = _registering[kind] = any(_names_registering(code) for code in codes)
    return known


def _names_registering(code: CodeType) -> bool:
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return "register_buffer" in code.co_names or any(map(_names_registering, inner))


# ---- whether a tensor's version tells of every write --------------------------------------------------------------

_counting: dict[type, bool] = {}


def _counts_writes(kind: type) -> bool:
    """Whether modules of this class write their buffers, if at all, only in ways that count in ``tensor._version``.

    Batch norm's kernel does not, nor do writes through ``.data``. The functions of the class's file are looked at too,
    because they may do it for the class.
    """
    known = _counting.get(kind)
    if known is None:
        known = _counting[kind] = not issubclass(kind, _NormBase) and not any(map(_hides_writes, kind.__mro__))
    return known


def _hides_writes(kind: type) -> bool:
    if kind.__module__ == "builtins" or kind.__module__.startswith("torch."):
        return False
    around = vars(sys.modules[kind.__module__]).values() if kind.__module__ in sys.modules else ()
    functions = [getattr(value, "__func__", value) for value in (*vars(kind).values(), *around)]
    return any(isinstance(function, FunctionType) and _names_hiding(function.__code__) for function in functions)


def _names_hiding(code: CodeType) -> bool:
    before = None
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        # ``torch.utils.data`` is a module, and so is what was imported under that name.
        if name in _HIDING and (name != "data" or (instruction.opname != "LOAD_GLOBAL" and before != "utils")):
            if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL"):
                return True
        before = name
    return any(isinstance(part, CodeType) and _names_hiding(part) for part in code.co_consts)
