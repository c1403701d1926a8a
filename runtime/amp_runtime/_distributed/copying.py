"""Rank 0's weights on every rank."""

from __future__ import annotations

import itertools

import torch.distributed as dist
from torch import nn

from amp_runtime._core.dtensors import refuse_shards
from amp_runtime._core.models import require_initialised
from amp_runtime._core.rows import table_of
from amp_runtime._distributed.exchange import as_bytes
from amp_runtime._distributed.group import flag_device


def copy_from_main_process(model: nn.Module) -> None:
    """Gives every rank the parameters and buffers of rank 0, in place. A collective.

    Tables whose rows are shared out stay as they are: they were given out when they were.

    Raises:
        RuntimeError: the model has lazy parameters, whose shapes are not known yet, or sharded ones, of which every
            rank has its own part.
    """
    require_initialised(model)
    refuse_shards(model, "copying rank 0's weights to all ranks", tables=False)
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if table_of(tensor) is not None:
            continue
        box = as_bytes(tensor).to(flag_device(tensor.device))
        dist.broadcast(box, src=0)
        if box.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(box.view(tensor.dtype).view(tensor.shape))
