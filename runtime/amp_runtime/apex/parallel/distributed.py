"""Apex's DistributedDataParallel and Reducer, and the helpers that send many tensors as one."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from amp_runtime._distributed.exchange import Exchange
from amp_runtime._distributed.group import flag_device
from amp_runtime.apex.amp import _agreement


def flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One vector with the elements of all tensors, which have one type."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflatten(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Views of ``flat`` in the shapes of ``tensors``."""
    pieces = torch.split(flat[: sum(tensor.numel() for tensor in tensors)], [tensor.numel() for tensor in tensors])
    return tuple(piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True))


def apply_flat_dist_call(bucket: Sequence[torch.Tensor], call: Callable[..., Any], extra_args: Any = None) -> None:
    """Applies a collective to tensors of one type as one vector, in place; sums become means.

    Args:
        bucket: the tensors.
        call: a function of ``torch.distributed`` that works in place. For ``all_reduce`` the mean is taken.
        extra_args: further positional arguments for it.
    """
    coalesced = flatten([tensor.detach() for tensor in bucket])
    call(coalesced, *(extra_args or ()))
    if call is dist.all_reduce:
        coalesced /= dist.get_world_size()
    with torch.no_grad():
        for tensor, synced in zip(bucket, unflatten(coalesced, bucket), strict=True):
            tensor.copy_(synced)


def split_half_float_double(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The tensors by type: float16, bfloat16, float32, float64; without empty lists."""
    tensors = list(tensors)
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    buckets = [[tensor for tensor in tensors if tensor.dtype is kind] for kind in kinds]
    return [bucket for bucket in buckets if bucket]


def split_by_type(tensors: Iterable[torch.Tensor]) -> OrderedDict[str, list[torch.Tensor]]:
    """The tensors by ``tensor.type()``, in order."""
    buckets: OrderedDict[str, list[torch.Tensor]] = OrderedDict()
    for tensor in tensors:
        buckets.setdefault(tensor.type(), []).append(tensor)
    return buckets


def flat_dist_call(tensors: Iterable[torch.Tensor], call: Callable[..., Any], extra_args: Any = None) -> None:
    """Applies a collective to tensors of any types in place, one vector a type; see ``apply_flat_dist_call``."""
    for bucket in split_by_type(tensors).values():
        apply_flat_dist_call(bucket, call, extra_args)


def broadcast(tensors: Iterable[torch.Tensor], source: int = 0) -> None:
    """Copies one rank's tensors to all ranks. A collective; does nothing alone."""
    if _world_size() == 1:
        return
    with torch.no_grad():
        for bucket in split_by_type([_real(tensor.detach()) for tensor in tensors]).values():
            flat = flatten([tensor.to(flag_device(tensor.device)) for tensor in bucket])
            dist.broadcast(flat, source)
            for tensor, sent in zip(bucket, unflatten(flat, bucket), strict=True):
                tensor.copy_(sent)


def average(parameters: Iterable[torch.Tensor]) -> None:
    """Replaces gradients by their means over all ranks. A collective; does nothing alone."""
    if _world_size() == 1:
        return
    for bucket in _buckets(list(parameters), None, frozenset()):
        bucket.launch(_AVERAGE, False)
        bucket.finish(_AVERAGE, False)


_AVERAGE = Exchange(predivide=1.0)


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


@dataclass
class _Bucket:
    """Parameters whose gradients travel together.

    Behind the gradients travels, for each parameter, whether this rank has one: a rank without takes part with zeros,
    and learns whether any other had one. So all ranks send the same buckets, whatever they used of the model.
    """

    parameters: list[torch.Tensor]
    waiting: set[int] = field(default_factory=set)
    flat: torch.Tensor | None = None
    work: Any = None

    def await_all(self) -> None:
        """Begins a backward pass: no gradient has arrived."""
        self.waiting = {id(parameter) for parameter in self.parameters}

    @torch.no_grad()
    def launch(self, exchange: Exchange, overlap: bool) -> None:
        """Starts the sum."""
        pieces = []
        for parameter in self.parameters:
            gradient = parameter.grad
            if gradient is None:
                gradient = torch.zeros_like(parameter)
            pieces.append(_real(gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()))
        has = [float(parameter.grad is not None) for parameter in self.parameters]
        flat = flatten([*pieces, torch.tensor(has, dtype=pieces[0].dtype, device=pieces[0].device)])
        divisor, _ = exchange.factors(_world_size())
        self.flat = exchange.widen(flat)
        if divisor != 1.0:
            self.flat /= divisor
        self.work = dist.all_reduce(self.flat, async_op=overlap)

    @torch.no_grad()
    def finish(self, exchange: Exchange, retain: bool) -> torch.Tensor:
        """Waits for the sum and writes it into the gradients; returns the vector of gradients."""
        assert self.flat is not None
        if self.work is not None:
            self.work.wait()
        _, after = exchange.factors(_world_size())
        flat, self.flat, self.work = self.flat, None, None
        present = flat[flat.numel() - len(self.parameters) :]
        absent = any(parameter.grad is None for parameter in self.parameters)
        anywhere = (present != 0).tolist() if absent else [True] * len(self.parameters)
        flat = flat[: flat.numel() - len(self.parameters)]
        if after != 1.0:
            flat *= after
        flat = flat.to(_real(self.parameters[0].detach()).dtype)
        shapes = [_real(parameter.detach()) for parameter in self.parameters]
        for parameter, mean, used in zip(self.parameters, unflatten(flat, shapes), anywhere, strict=True):
            if used:
                _write(parameter, torch.view_as_complex(mean) if parameter.is_complex() else mean, retain)
        return flat


def _write(parameter: torch.Tensor, mean: torch.Tensor, retain: bool) -> None:
    if parameter.grad is not None and parameter.grad.is_sparse:
        parameter.grad = mean.to_sparse(1)
    elif retain:
        parameter.grad = mean
    elif parameter.grad is None:
        parameter.grad = mean.clone()
    else:
        parameter.grad.copy_(mean)


def _buckets(parameters: list[torch.Tensor], message_size: int | None, triggers: frozenset[int]) -> list[_Bucket]:
    """Parameters in buckets of one type and device, last ones first: their gradients come first."""
    buckets: list[_Bucket] = []
    kind: Any = None
    size = 0
    ordered = parameters[::-1]
    if message_size is None:  # one message a type, so types need not stay in order
        ordered.sort(key=lambda parameter: str((parameter.dtype, parameter.device)))
    for parameter in ordered:
        if (parameter.dtype, parameter.device) != kind or (message_size is not None and size >= message_size):
            buckets.append(_Bucket([]))
            kind, size = (parameter.dtype, parameter.device), 0
        buckets[-1].parameters.append(parameter)
        size += parameter.numel()
        if id(parameter) in triggers:
            kind = None
    return buckets


class _Arrival:
    __torch_unserializable__ = True  # saving a parameter drops the hook without a warning

    def __init__(self, owner: DistributedDataParallel) -> None:
        self._owner = owner  # which has to live until the last backward pass

    def __call__(self, parameter: torch.Tensor) -> None:
        self._owner._gradient_arrived(parameter)


class DistributedDataParallel(nn.Module):
    """Apex's wrapper: averages a model's gradients over all ranks during each backward pass.

    Rank 0's parameters go to all ranks here; buffers do not. The process group is made before. Alone, and without a
    process group, it only calls the model. Backward passes may be differentiated again. A parameter that only some
    ranks used counts as zero on the others; one that none used keeps its gradient of ``None``.

    Args:
        module: the model, on its device, after ``amp.initialize``.
        message_size: the least number of elements that is sent at once during the backward pass.
        delay_allreduce: send everything at its end.
        shared_param: refused, as in Apex.
        allreduce_trigger_params: parameters at which a message ends.
        retain_allreduce_buffers: gradients become views of the vectors that were sent, ``allreduce_buffers``.
        allreduce_always_fp32: sum half gradients in float32.
        num_allreduce_streams: accepted; the backend chooses streams.
        allreduce_communicators: accepted, not used.
        gradient_average: divide the sum by the number of ranks.
        gradient_predivide_factor: divide by this before the sum, and by the rest of the number of ranks after it; the
            former also without ``gradient_average``.
        gradient_average_split_factor: accepted, not used.
        prof: accepted, not used.

    Attributes:
        module: the model.
        allreduce_buffers: the vectors of the last backward pass, with ``retain_allreduce_buffers``.
        needs_refresh: whether messages are laid out anew at the next forward pass.

    Raises:
        ValueError: ``shared_param`` was given, or ``allreduce_trigger_params`` with ``delay_allreduce``.
    """

    def __init__(
        self,
        module: nn.Module,
        message_size: int = 10000000,
        delay_allreduce: bool = False,
        shared_param: Any = None,
        allreduce_trigger_params: Sequence[torch.Tensor] | None = None,
        retain_allreduce_buffers: bool = False,
        allreduce_always_fp32: bool = False,
        num_allreduce_streams: int = 1,
        allreduce_communicators: Any = None,
        gradient_average: bool = True,
        gradient_predivide_factor: float = 1.0,
        gradient_average_split_factor: float | None = None,
        prof: bool = False,
    ) -> None:
        super().__init__()
        if shared_param is not None:
            raise ValueError(
                "shared_param is no longer supported as an option. Overlapping communication with computation works "
                "with shared parameters. To delay communication to the end of the backward pass, use "
                "delay_allreduce=True."
            )
        if delay_allreduce and allreduce_trigger_params is not None:
            raise ValueError("Setting allreduce_trigger_params is only valid if delay_allreduce=False.")
        if num_allreduce_streams != 1 or allreduce_communicators is not None:
            warnings.warn("num_allreduce_streams and allreduce_communicators have no effect here", stacklevel=2)
        self.module = module
        self.message_size = message_size
        self.delay_allreduce = delay_allreduce
        self.retain_allreduce_buffers = retain_allreduce_buffers
        self.allreduce_buffers: list[torch.Tensor] = []
        self.allreduce_trigger_params = allreduce_trigger_params
        self.needs_refresh = True
        self._exchange = Exchange(message_size, gradient_predivide_factor, allreduce_always_fp32, gradient_average)
        self._disable_allreduce = False
        self._reset()
        broadcast(module.parameters())
        _agreement.mark(module.parameters())
        self._refresh()

    def _reset(self) -> None:
        self._handles: list[Any] = []
        self._hooked: list[torch.Tensor] = []
        self._order: list[_Bucket] = []
        self._next = 0
        self._queued = False

    def enable_allreduce(self) -> None:
        """Lets backward passes average gradients again, with what was accumulated meanwhile."""
        self._disable_allreduce = False

    def disable_allreduce(self) -> None:
        """Lets backward passes leave gradients as they are, to accumulate them."""
        self._disable_allreduce = True

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Calls the model."""
        if torch.is_grad_enabled():
            self._refresh()
        return self.module(*inputs, **kwargs)

    def _refresh(self) -> None:
        """Follows parameters that were frozen, thawed or replaced since the last forward pass."""
        parameters: list[torch.Tensor] = [p for p in self.module.parameters() if p.requires_grad]
        same = [id(parameter) for parameter in parameters] == [id(parameter) for parameter in self._hooked]
        if _world_size() == 1 or (same and not self.needs_refresh):
            return
        for handle in self._handles:
            handle.remove()
        hook = _Arrival(self)
        self._handles = [p.register_post_accumulate_grad_hook(hook) for p in parameters]  # type: ignore[no-untyped-call]
        self._hooked = parameters
        triggers = frozenset(id(parameter) for parameter in self.allreduce_trigger_params or ())
        self._order = _buckets(parameters, None if self.delay_allreduce else self.message_size, triggers)
        self.needs_refresh = False

    def _gradient_arrived(self, parameter: torch.Tensor) -> None:
        if self._disable_allreduce:
            _agreement.keep_local((parameter,))
            return
        if not self._queued:
            self._queued = True
            self._next = 0
            for bucket in self._order:
                bucket.await_all()
            # Called when the engine has finished this backward pass.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        if self.delay_allreduce:
            return
        for bucket in self._order[self._next :]:
            bucket.waiting.discard(id(parameter))
        while self._next < len(self._order) and not self._order[self._next].waiting:
            self._order[self._next].launch(self._exchange, True)
            self._next += 1

    def _finish(self) -> None:
        self._queued = False
        for bucket in self._order[self._next :]:
            bucket.launch(self._exchange, True)
        retain = self.retain_allreduce_buffers
        flats = [bucket.finish(self._exchange, retain) for bucket in self._order]
        self.allreduce_buffers = flats if retain else []

    def __getstate__(self) -> dict[str, Any]:
        left = {"_handles", "_hooked", "_order", "allreduce_buffers"}
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._reset()
        self.allreduce_buffers = []
        self.needs_refresh = True


class Reducer:
    """Averages gradients over all ranks when the script calls ``reduce``.

    Args:
        module_or_grads_list: a module, whose parameters become rank 0's here; or a list of gradients.

    Raises:
        TypeError: it is neither.
    """

    def __init__(self, module_or_grads_list: Any) -> None:
        self.module: nn.Module | None = None
        self.grads: list[torch.Tensor] = []
        if isinstance(module_or_grads_list, nn.Module):
            self.module = module_or_grads_list
            broadcast(self.module.parameters())
            _agreement.mark(self.module.parameters())
        elif isinstance(module_or_grads_list, (list, tuple)):
            self.grads = list(module_or_grads_list)
        else:
            raise TypeError(
                f"Reducer got {type(module_or_grads_list).__name__}; allowed: a torch.nn.Module or a list of gradients"
            )

    def reduce(self) -> None:
        """Replaces the gradients by their means. A collective; does nothing alone."""
        if self.module is not None:
            average([parameter for parameter in self.module.parameters() if parameter.requires_grad])
        elif _world_size() > 1:
            flat_dist_call(self.grads, dist.all_reduce)
