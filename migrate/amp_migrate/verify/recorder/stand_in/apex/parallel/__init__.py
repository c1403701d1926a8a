"""``apex.parallel`` in one process; in several it would have to average, and refuses."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .LARC import LARC

__all__ = ["LARC", "DistributedDataParallel", "Reducer", "SyncBatchNorm", "convert_syncbn_model"]


class DistributedDataParallel(torch.nn.Module):
    """Calls the model, which is alone."""

    def __init__(self, module: torch.nn.Module, *args: Any, **more: Any) -> None:
        super().__init__()
        _require_one_process()
        self.module = module

    def forward(self, *args: Any, **more: Any) -> Any:
        """Call the model."""
        return self.module(*args, **more)


class Reducer:
    """Averages over one process."""

    def __init__(self, module_or_grads_list: Any) -> None:
        _require_one_process()

    def reduce(self) -> None:
        """Do nothing."""


class SyncBatchNorm(_BatchNorm):
    """Batch norm of one process, for inputs of any dimension."""

    def __init__(self, *args: Any, process_group: Any = None, channel_last: bool = False, **more: Any) -> None:
        super().__init__(*args, **more)
        _require_one_process()

    def _check_input_dim(self, input: torch.Tensor) -> None:
        pass


def convert_syncbn_model(module: torch.nn.Module, *args: Any, **more: Any) -> torch.nn.Module:
    """Return the model: in one process every batch norm is synchronised."""
    _require_one_process()
    return module


def _require_one_process() -> None:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise NotImplementedError("the stand-in for Apex trains in one process; install Apex to compare with it")
