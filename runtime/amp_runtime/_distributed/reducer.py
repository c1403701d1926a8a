"""``amp.Reducer``: gradients averaged when the script says so, as ``apex.parallel.Reducer`` did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from amp_runtime._core.rows import table_of
from amp_runtime._distributed.averaging import average_gradients, average_tensors
from amp_runtime._distributed.buckets import world_size
from amp_runtime._distributed.copying import copy_from_main_process


class Reducer:
    """Averages the gradients of a module, or given tensors, over the processes, each time ``reduce`` is called.

    It is for scripts that decide themselves when to communicate, in a process group that may be their own, and does
    nothing alone. Making one for a module copies rank 0's parameters and buffers to the other ranks. A collective:
    every rank makes it, and every rank reduces.

    Args:
        module_or_grads: a module, or an iterable of tensors to average in place; ``None`` among them is passed over,
            on all ranks alike.

    Raises:
        TypeError: it is neither.
    """

    def __init__(self, module_or_grads: nn.Module | Iterable[torch.Tensor | None]) -> None:
        self.module: nn.Module | None = None
        self.grads: Sequence[torch.Tensor] = ()
        if isinstance(module_or_grads, nn.Module):
            self.module = module_or_grads
            if world_size() > 1:
                copy_from_main_process(module_or_grads)
            return
        if isinstance(module_or_grads, (torch.Tensor, str)) or not isinstance(module_or_grads, Iterable):
            raise TypeError(
                f"amp.Reducer got {type(module_or_grads).__name__}; allowed: a torch.nn.Module, or a list of tensors"
            )
        self.grads = [gradient for gradient in module_or_grads if gradient is not None]

    def reduce(self) -> None:
        """Replaces each gradient by its mean over the processes.

        Of a module, a gradient that exists on some ranks only counts as zero on the others.
        """
        if world_size() == 1:
            return
        if self.module is not None:
            average_gradients([p for p in self.module.parameters() if p.requires_grad and table_of(p) is None])
        else:
            average_tensors(self.grads)
