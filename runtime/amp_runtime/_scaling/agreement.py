"""Which ranks decide together whether a step is skipped.

With ``amp.init(ddp=True)`` all of them: every rank runs the same steps. In a process group of the script's own that
is not known. A rank may train something alone (a probe on rank 0, a learner among actors, a pipeline's stage), and a
collective would then wait for ever. But whoever wraps a model in torch's DistributedDataParallel runs the same
backward passes on all ranks of its group, so an optimizer that holds such a model's parameters is agreed upon in that
group; not from the first ``join()`` on, where ranks that ran out of data step no more. The averaged gradients are
equal on all ranks, and so are the decisions: nothing is sent for them, except at an optimizer's first step and after
the scale was set from outside, where a number might differ. Other optimizers are left to their rank, unless the script
sets ``amp.scaler.process_group``, whose ranks agree at every step.

Of sharded gradients, and of those of tables whose rows are shared out, each rank sees its own part only: all ranks
agree at every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from amp_runtime._core.context import context
from amp_runtime._core.dtensors import any_sharded
from amp_runtime._core.living import living
from amp_runtime._core.models import prepared_parameters
from amp_runtime._core.rows import has_rows
from amp_runtime._distributed.group import flag_device
from amp_runtime._distributed.objects import all_objects


@dataclass
class Ranks:
    """The ranks that decide together.

    Attributes:
        group: their process group; ``None`` is the default one.
        models: the script's DDP models through which they were found.
        averaged: whether all gradients of the optimizer are means over the ranks: what is not finite on one of them
            is so on all, and nothing has to be sent to know it.
    """

    group: Any = None
    models: tuple[DistributedDataParallel, ...] = ()
    averaged: bool = False

    def device(self, near: torch.device) -> torch.device:
        """A device on which their process group serves a small tensor."""
        if self.group is None:
            return flag_device(near)
        served = str(dist.get_backend(self.group))
        if near.type == "cuda" or "gloo" in served or "mpi" in served or not torch.cuda.is_available():
            return near if near.type == "cuda" else torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    def joining(self) -> bool:
        """Whether some ranks may have run out of data and step no more; torch never takes that back."""
        return any(model._join_config.enable for model in self.models)

    def strongest(self, flags: torch.Tensor) -> torch.Tensor:
        """The elementwise maximum of float32 ``flags`` over the ranks. A collective."""
        if self.joining():
            return flags
        flags = flags.to(self.device(flags.device))
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.group)
        return flags

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """The elementwise sum of ``numbers`` over the ranks. A collective."""
        numbers = numbers.to(self.device(numbers.device))
        dist.all_reduce(numbers, group=self.group)
        return numbers

    def size(self) -> int:
        """The number of ranks."""
        return dist.get_world_size(self.group)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's picklable ``value``, by rank. A collective."""
        if self.joining():
            return [value]
        return all_objects(value, self.device(torch.device("cpu")), self.group)


def ranks_of(parameters: list[torch.Tensor], chosen: Any) -> Ranks | None:
    """The ranks that decide together about an optimizer of these parameters; ``None`` if this one decides alone.

    Args:
        parameters: all parameters of the optimizer.
        chosen: the process group that the script set, ``False`` for none, or ``None``.
    """
    if context.distributed and (any_sharded(parameters) or has_rows(parameters)):
        return Ranks()  # a part of each gradient is on every rank, whatever the script chose
    if chosen is False or not (dist.is_available() and dist.is_initialized()):
        return None
    if chosen is not None:
        return Ranks(chosen) if dist.get_world_size(chosen) > 1 else None
    if context.distributed:
        return Ranks(averaged=_are_among(parameters, prepared_parameters()))
    held = set(map(id, parameters))
    wrapped = living(DistributedDataParallel)
    models = tuple(model for model in wrapped if any(id(p) in held for p in model.parameters()))
    groups = {id(model.process_group): model.process_group for model in models}
    if len(groups) != 1:
        return None  # none, or several, of which no one decides for all
    (group,) = groups.values()
    averaged = _are_among(parameters, {id(p) for model in models for p in model.parameters()})
    return Ranks(group, models, averaged) if dist.get_world_size(group) > 1 else None


def _are_among(parameters: list[torch.Tensor], averaged: set[int]) -> bool:
    return all(id(parameter) in averaged for parameter in parameters if parameter.requires_grad)
