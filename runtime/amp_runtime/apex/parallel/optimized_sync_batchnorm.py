"""Apex's SyncBatchNorm, on the CPU too."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from amp_runtime._distributed.batchnorm import SyncBatchNorm as _Synchronised


class SyncBatchNorm(_Synchronised):
    """Batch norm over the batches of all ranks, with Apex's arguments.

    Args:
        num_features: the number of channels C.
        eps: added to the variance.
        momentum: the weight of a batch in the running statistics; ``None`` averages all batches.
        affine: whether there are a weight and a bias.
        track_running_stats: whether there are running statistics.
        process_group: the ranks that share statistics; ``None`` is all of them.
        channel_last: the input is ``(N, ..., C)`` and not ``(N, C, ...)``.
        fuse_relu: the output goes through a ReLU.
    """

    channel_last = False
    fuse_relu = False

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        channel_last: bool = False,
        fuse_relu: bool = False,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, process_group)
        self.channel_last = channel_last
        self.fuse_relu = fuse_relu

    def forward(self, input: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        """Normalises ``input``.

        Args:
            input: ``(N, C, ...)``, or ``(N, ..., C)`` with ``channel_last``; floating.
            z: added to the result before the ReLU, of the same shape.
        """
        output = super().forward(input.movedim(-1, 1) if self.channel_last else input)
        if self.channel_last:
            output = output.movedim(1, -1)
        if z is not None:
            output = output + z
        return output.relu() if self.fuse_relu else output


def convert_syncbn_model(module: nn.Module, process_group: Any = None, channel_last: bool = False) -> nn.Module:
    """Turns every batch norm in ``module`` into a :class:`SyncBatchNorm`, in place.

    Each stays the same object with the same parameters, buffers, hooks and mode, where Apex made new ones: an optimizer
    made before keeps training them.

    Args:
        module: the model, or a single batch norm.
        process_group: the ranks that share statistics; ``None`` is all of them.
        channel_last: the batch norms' inputs are ``(N, ..., C)``.

    Returns:
        ``module`` itself.
    """
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            part.__class__ = SyncBatchNorm
            synchronised = cast(SyncBatchNorm, part)
            synchronised.process_group = process_group
            synchronised.channel_last = channel_last
    return module
