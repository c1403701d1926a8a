"""The script's own ``DistributedDataParallel`` around a half model: every rank gets the masters of rank 0.

It sends rank 0's half weights to the others. Without this each rank would keep masters of its own: rank 0 those that
were never rounded, the others what they received, and the ranks would train other weights from the first step on.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from amp_runtime._core.context import context
from amp_runtime._distributed.exchange import as_bytes
from amp_runtime._precision import masters

_registered: Any = None


def watch_wrappers() -> None:
    """Has the masters of rank 0 sent wherever a model is wrapped: the wrapper sends its weights then, a collective."""
    global _registered
    if _registered is None and dist.is_available():
        _registered = register_module_module_registration_hook(_copy_masters)


def stop_watching_wrappers() -> None:
    """Leaves wrappers to themselves; ``amp.shutdown`` does it."""
    global _registered
    if _registered is not None:
        _registered.remove()
        _registered = None


def _copy_masters(wrapper: nn.Module, name: str, module: nn.Module | None) -> None:
    """A hook on every module that becomes a part of another: of the model, where that is torch DDP."""
    if name != "module" or module is None or not isinstance(wrapper, nn.parallel.DistributedDataParallel):
        return
    group = wrapper.process_group
    if context.distributed or dist.get_world_size(group) == 1:  # amp.prepare_model has copied the weights themselves
        return
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    for key, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        full = None if key in ignored else masters.master_of(tensor)
        if full is None:
            continue
        box = as_bytes(full)
        dist.broadcast(box, src=dist.get_global_rank(group, 0), group=group)
        masters.assign(tensor, box.view(full.dtype).view(full.shape))
