"""A stand-in for GPUs in a process that has none, for scripts written for nothing else.

With ``AMP_VERIFY_NO_GPU`` tensors and modules that are sent to CUDA stay where they are, NCCL is Gloo, and what
chooses among GPUs chooses nothing. ``torch.cuda.is_available()`` still says that there is none. The variable's value
is what ``torch.cuda.device_count()`` says, which such scripts start their processes by.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from . import imports
from .steps import Steps

_NAME = re.compile(r"cuda(?::\d+)?")
# Refuses SyncBatchNorm on a CPU.
_REFUSES = "_passing_sync_batchnorm_handle"
_CHOOSING = ("set_device", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats")


def watch(steps: Steps) -> None:
    """Put the stand-in in place, where one is asked for."""
    count = os.environ.get("AMP_VERIFY_NO_GPU", "")
    torch = steps.torch
    if not count or torch.cuda.is_available():
        return
    _stay(torch)
    _choose_nothing(torch, int(count))
    torch.load = _without_place(torch.load)
    imports.after("torch.distributed.distributed_c10d", functools.partial(_watch_groups, torch))
    imports.after("torch.nn.parallel.distributed", _watch_ddp)
    imports.after("torch.nn.modules.batchnorm", functools.partial(_watch_sync_bn, torch))


def _stay(torch: Any) -> None:
    """Let everything that names a CUDA device mean the CPU, in this thread."""
    from torch.overrides import TorchFunctionMode

    cpu = torch.device("cpu")
    tensor = torch.Tensor

    def here(value: Any) -> Any:
        if isinstance(value, torch.device):
            return cpu if value.type == "cuda" else value
        return "cpu" if isinstance(value, str) and _NAME.fullmatch(value) else value

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func is tensor.cuda or func is tensor.pin_memory:
                return args[0]
            if func is torch.device:  # the script may ask what type it is
                return func(*args, **kwargs)
            found = [here(value) for value in args]
            if func is tensor.to and len(found) > 1 and type(found[1]) is int:
                found[1] = cpu
            return func(*found, **{name: _named(name, here(value)) for name, value in kwargs.items()})

    def _named(name: str, value: Any) -> Any:
        return cpu if name == "device" and type(value) is int else value

    mode: Any = OnCpu()
    mode.__enter__()


def _choose_nothing(torch: Any, count: int) -> None:
    cuda = torch.cuda
    for name in _CHOOSING:
        if hasattr(cuda, name):
            setattr(cuda, name, _nothing(getattr(cuda, name)))
    cuda.device_count = lambda: count
    cuda.current_device = lambda: int(os.environ.get("LOCAL_RANK") or 0)
    cuda.device.__enter__ = lambda self: None
    cuda.device.__exit__ = lambda self, *_: False


def _nothing(function: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(function)
    def done(*args: Any, **kwargs: Any) -> None:
        return None

    return done


def _without_place(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def loaded(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(file, "cpu", *args, **kwargs)

    return loaded


def _watch_groups(torch: Any, module: Any) -> None:
    """Let process groups that ask for NCCL have Gloo."""
    for name in ("init_process_group", "new_group"):
        changed = _with_gloo(getattr(module, name))
        setattr(module, name, changed)
        distributed = getattr(torch, "distributed", None)
        if hasattr(distributed, name):
            setattr(distributed, name, changed)


def _with_gloo(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        return make(*map(_gloo, args), **{name: _gloo(value) for name, value in kwargs.items()})

    return made


def _gloo(value: Any) -> Any:
    return "gloo" if isinstance(value, str) and "nccl" in value.lower() else value


def _watch_ddp(module: Any) -> None:
    ddp = module.DistributedDataParallel
    init = ddp.__init__

    @functools.wraps(init)
    def made(
        self: Any, model: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        init(self, model, None, None, *args, **kwargs)

    ddp.__init__ = made
    if hasattr(ddp, _REFUSES):
        setattr(ddp, _REFUSES, _nothing(getattr(ddp, _REFUSES)))


def _watch_sync_bn(torch: Any, module: Any) -> None:
    """Let ``SyncBatchNorm``, which torch has for GPUs only, compute on the CPU."""
    sync = module.SyncBatchNorm
    original = sync.forward

    @functools.wraps(original)
    def forward(self: Any, data: Any) -> Any:
        distributed = torch.distributed
        in_training = self.training or self.running_mean is None
        if not (in_training and distributed.is_available() and distributed.is_initialized()):
            return original(self, data)
        if distributed.get_world_size(self.process_group) == 1:
            # As torch does it where there is nobody to share with.
            return module._BatchNorm.forward(self, data)
        return _batch_norm(torch, self, data)

    sync.forward = forward


def _batch_norm(torch: Any, norm: Any, data: Any) -> Any:
    """Batch norm in training over the samples of all processes."""
    all_reduce: Any = import_module("torch.distributed.nn.functional").all_reduce
    kind = data.dtype
    values = data.float()
    axes = [axis for axis in range(values.dim()) if axis != 1]
    shape = [1, -1] + [1] * (values.dim() - 2)
    group = norm.process_group or torch.distributed.group.WORLD
    local = values.new_full((1,), values.numel() / values.shape[1])
    sums = all_reduce(torch.cat([values.sum(axes), local]), group=group)
    count = sums[-1].detach()
    mean = sums[:-1] / count
    centred = values - mean.view(shape)
    variance = all_reduce(centred.square().sum(axes), group=group) / count
    with torch.no_grad():
        if norm.running_mean is not None:
            norm.num_batches_tracked.add_(1)
            share = 1.0 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
            norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
            norm.running_var.lerp_((variance * count / (count - 1)).to(norm.running_var.dtype), share)
    result = centred * torch.rsqrt(variance + norm.eps).view(shape)
    if norm.affine:
        result = result * norm.weight.view(shape) + norm.bias.view(shape)
    return result.to(kind)
