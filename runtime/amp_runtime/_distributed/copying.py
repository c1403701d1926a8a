"""Rank 0's weights on every rank."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from torch import nn

from amp_runtime._core.models import require_initialised
from amp_runtime._distributed.group import flag_device


def copy_from_main_process(model: nn.Module) -> None:
    """Gives every rank the parameters and buffers of rank 0, in place. A collective.

    Raises:
        RuntimeError: the model has lazy parameters, whose shapes are not known yet.
    """
    require_initialised(model)
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        data = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        box = data.to(flag_device(data.device)).contiguous()
        if box.dtype is torch.bool:  # NCCL and gloo carry bytes, not bools
            box = box.to(torch.uint8)
        dist.broadcast(box, src=0)
        if box.data_ptr() != data.data_ptr() or box.dtype is not data.dtype:
            data.copy_(box)
