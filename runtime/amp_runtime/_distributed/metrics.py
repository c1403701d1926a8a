"""Numbers of all processes together: sums, means, extremes, and whole tensors."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from amp_runtime._core.context import context
from amp_runtime._core.trees import map_tensors
from amp_runtime._distributed.exchange import as_bytes, real_view
from amp_runtime._distributed.group import flag_device, from_all_processes
from amp_runtime._distributed.passes import end_passes
from amp_runtime._distributed.shadow import current_round, shadowing

T = TypeVar("T")
_Op = Any


def reduce_mean(value: T, weight: float | torch.Tensor | None = None) -> T:
    """The mean of ``value`` over the processes, for logging; ``value`` itself alone.

    ``amp.reduce_mean(loss, weight=len(x))`` is the mean over samples where batches differ in size. A collective.

    Args:
        value: a tensor or array of any shape, equal on all ranks, a number, or nested dictionaries, lists and tuples of
            them; what is neither is returned as it is. No gradient flows through it.
        weight: how much this rank counts: a number or a tensor of one element, not negative. A rank of weight 0 does
            not count at all, even if its value is NaN. ``None`` is 1 on all ranks.

    Returns:
        The same structure with new tensors of the same shape on the same device (integers become float32) and
        floats; NaN if all weights are 0.

    Raises:
        ValueError: ``weight`` is negative or not finite.
    """
    own = 1.0 if weight is None else float(weight)
    if not (math.isfinite(own) and own >= 0):
        raise ValueError(f"amp.reduce_mean got weight={weight!r}; allowed: a finite number, not negative")
    if not context.distributed:
        return value
    if weight is None and current_round() is None:
        total = float(context.world_size)
    else:
        own = 0.0 if shadowing() else own
        total = _reduce_number(own, dist.ReduceOp.SUM)

    def weigh(tensor: torch.Tensor) -> torch.Tensor:
        wide = tensor.to(_float_of(tensor))
        return torch.zeros_like(wide) if own == 0 else wide * (own / total)

    if total == 0:
        mean: T = _map_leaves(_not_a_number, value)
    else:
        mean = _reduce(value, dist.ReduceOp.SUM, weigh, float)
    return mean


def _not_a_number(leaf: Any) -> Any:
    return torch.full_like(leaf, math.nan, dtype=_float_of(leaf)) if isinstance(leaf, torch.Tensor) else math.nan


def _float_of(tensor: torch.Tensor) -> torch.dtype:
    return tensor.dtype if tensor.is_floating_point() or tensor.is_complex() else torch.float32


def reduce_sum(value: T) -> T:
    """The sum of ``value`` over the processes, for counts; ``value`` itself alone. A collective.

    Args:
        value: a tensor or array of any shape, equal on all ranks, a number, or nested dictionaries, lists and tuples of
            them; what is neither is returned as it is. No gradient flows through it.

    Returns:
        The same structure with new tensors of the same shape, type and device, and numbers of the same type.
    """

    def count(tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(tensor) if shadowing() else tensor

    total: T = _reduce(value, dist.ReduceOp.SUM, count, None)
    return total


def reduce_max(value: T) -> T:
    """The greatest ``value`` of the processes, element by element; ``value`` itself alone. A collective.

    Args:
        value: as for :func:`reduce_sum`; real, since complex numbers have no order.

    Returns:
        The same structure with new tensors of the same shape, type and device, and numbers of the same type.
    """
    extreme: T = _reduce(value, dist.ReduceOp.MAX, lambda tensor: _least(tensor, greatest=False), None)
    return extreme


def reduce_min(value: T) -> T:
    """The smallest ``value`` of the processes, element by element; ``value`` itself alone. A collective.

    Args:
        value: as for :func:`reduce_sum`; real, since complex numbers have no order.

    Returns:
        The same structure with new tensors of the same shape, type and device, and numbers of the same type.
    """
    extreme: T = _reduce(value, dist.ReduceOp.MIN, lambda tensor: _least(tensor, greatest=True), None)
    return extreme


def gather(value: Any, length: int | None = None) -> Any:
    """The tensors of all processes together, on every process, as for metrics that need all predictions.

    ``amp.gather(predictions, length=len(dataset))`` puts what was computed from an unshuffled prepared loader back
    into the order of the dataset, without the samples that ``uneven="pad"`` repeated. It holds for a whole epoch, and
    for a single batch with ``length`` at most the number of its samples over all ranks. Loaders with a batch sampler
    of their own share out whole batches, to which ``length`` does not apply. A collective.

    Args:
        value: a tensor of shape ``(n, ...)``, where ``n`` may differ between ranks, a scalar tensor or number, which
            counts as ``n = 1``, or nested dictionaries, lists and tuples of them. No gradient flows through it.
        length: how many samples were shared out; ``None`` keeps all, one rank after the other.

    Returns:
        The same structure of tensors of shape ``(total, ...)`` on the device where each was. Alone the samples
        themselves, cut to ``length``.

    Raises:
        ValueError: ``length`` is negative, or shapes after the first dimension differ between ranks.
    """
    if length is not None and (isinstance(length, bool) or length < 0):
        raise ValueError(f"amp.gather got length={length!r}; allowed: None, or a number of samples")
    return _map_leaves(lambda leaf: _gather(leaf, length), value)


def _gather(leaf: Any, length: int | None) -> torch.Tensor:
    tensor = leaf.detach() if isinstance(leaf, torch.Tensor) else torch.tensor(leaf)
    own = tensor.reshape(1) if tensor.dim() == 0 else tensor
    if not context.distributed:
        return own if length is None else own[:length]
    if shadowing():
        own = own[:0]
    parts = [part.to(tensor.device) for part in _exchange_parts(own)]
    if length is None:
        return torch.cat(parts)
    rounds = max(len(part) for part in parts)
    taken = [part[number : number + 1] for number in range(rounds) for part in parts]
    return torch.cat(taken)[:length] if taken else own


def _exchange_parts(own: torch.Tensor) -> list[torch.Tensor]:
    shapes = from_all_processes((tuple(own.shape), own.dtype))
    if len({(shape[1:], dtype) for shape, dtype in shapes}) > 1:
        listed = ", ".join(f"{shape} {dtype} on rank {rank}" for rank, (shape, dtype) in enumerate(shapes))
        raise ValueError(f"amp.gather got {listed}; allowed: tensors that differ in their first dimension only")
    longest = max(shape[0] for shape, _ in shapes)
    device = flag_device(own.device)
    box = torch.zeros((longest, *own.shape[1:]), dtype=own.dtype, device=device)
    box[: len(own)] = own
    travelling = as_bytes(box)
    received = [torch.empty_like(travelling) for _ in shapes]
    dist.all_gather(received, travelling)
    parts = [part.view(box.dtype).view(box.shape) for part in received]
    return [part[: shape[0]] for part, (shape, _) in zip(parts, shapes, strict=True)]


def _least(tensor: torch.Tensor, greatest: bool) -> torch.Tensor:
    """What never wins a comparison, on a shadowing rank; the tensor itself elsewhere."""
    if tensor.is_complex():
        raise TypeError(f"amp.reduce_{'min' if greatest else 'max'} got a {tensor.dtype} tensor; allowed: real ones")
    if not shadowing():
        return tensor
    if tensor.is_floating_point():
        return torch.full_like(tensor, math.inf if greatest else -math.inf)
    if tensor.dtype is torch.bool:
        return torch.full_like(tensor, greatest)
    limits = torch.iinfo(tensor.dtype)
    return torch.full_like(tensor, limits.max if greatest else limits.min)


def _reduce(
    value: Any, operation: _Op, prepare: Callable[[torch.Tensor], torch.Tensor], number_type: type[float] | None
) -> Any:
    if not context.distributed:
        return value
    end_passes()

    def reduce(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return _reduce_tensor(prepare(leaf.detach()), operation)
        if _is_array(leaf):
            return _reduce_tensor(prepare(torch.from_numpy(leaf)), operation).numpy()
        number = float(prepare(torch.tensor(float(leaf), dtype=torch.float64)))
        kind: Any = number_type or (int if isinstance(leaf, bool) else type(leaf))
        return kind(_reduce_number(number, operation))

    return _map_leaves(reduce, value)


def _reduce_number(number: float, operation: _Op) -> float:
    box = torch.tensor(number, dtype=torch.float64, device=flag_device())
    dist.all_reduce(box, operation)
    return box.item()


def _reduce_tensor(tensor: torch.Tensor, operation: _Op) -> torch.Tensor:
    box = tensor.to(flag_device(tensor.device)).clone(memory_format=torch.contiguous_format)
    dtype = box.dtype
    if dtype is torch.bool and operation == dist.ReduceOp.SUM:
        box, dtype = box.long(), torch.int64
    elif dtype in (torch.bool, torch.int16):  # which no process group reduces
        box = box.int()
    dist.all_reduce(real_view(box), operation)
    return box.to(tensor.device, dtype)


def _map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Applies ``change`` to the tensors and numbers in nested containers."""
    if isinstance(value, (torch.Tensor, numbers.Real)) or _is_array(value):
        return change(value)
    if isinstance(value, Mapping):
        return _map_mapping(change, value)
    if isinstance(value, (list, tuple)):
        items = [_map_leaves(change, item) for item in value]
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    return map_tensors(change, value)


def _is_array(value: Any) -> bool:
    """Whether it is an array of numpy's, of numbers."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype != object


def _map_mapping(change: Callable[[Any], Any], value: Mapping[Any, Any]) -> Any:
    return {key: _map_leaves(change, item) for key, item in value.items()}
