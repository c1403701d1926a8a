"""Apex's DistributedDataParallel and Reducer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from amp_runtime._core.dtensors import refuse_shards
from amp_runtime._distributed.buckets import Bucket, buckets_of, world_size
from amp_runtime._distributed.buckets import flatten as flatten
from amp_runtime._distributed.buckets import unflatten as unflatten
from amp_runtime._distributed.exchange import Exchange
from amp_runtime.apex import _replicas
from amp_runtime.apex._buckets import apply_flat_dist_call as apply_flat_dist_call
from amp_runtime.apex._buckets import average, broadcast
from amp_runtime.apex._buckets import flat_dist_call as flat_dist_call
from amp_runtime.apex._buckets import split_by_type as split_by_type
from amp_runtime.apex._buckets import split_half_float_double as split_half_float_double


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
        RuntimeError: the model is sharded.
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
        refuse_shards(module, "apex.parallel.DistributedDataParallel")
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
        _replicas.mark(module.parameters())
        self._refresh()

    def _reset(self) -> None:
        self._handles: list[Any] = []
        self._hooked: list[torch.Tensor] = []
        self._order: list[Bucket] = []
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
        if world_size() == 1 or (same and not self.needs_refresh):
            return
        for handle in self._handles:
            handle.remove()
        hook = _Arrival(self)
        self._handles = [p.register_post_accumulate_grad_hook(hook) for p in parameters]  # type: ignore[no-untyped-call]
        self._hooked = parameters
        triggers = frozenset(id(parameter) for parameter in self.allreduce_trigger_params or ())
        self._order = buckets_of(parameters, None if self.delay_allreduce else self.message_size, triggers)
        self.needs_refresh = False

    def _gradient_arrived(self, parameter: torch.Tensor) -> None:
        if self._disable_allreduce:
            _replicas.keep_local((parameter,))
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
            refuse_shards(module_or_grads_list, "Reducer")
            self.module = module_or_grads_list
            broadcast(self.module.parameters())
            _replicas.mark(self.module.parameters())
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
        elif world_size() > 1:
            flat_dist_call(self.grads, dist.all_reduce)
