"""What ``amp.initialize`` does to models: checks, half weights, casts of inputs, outputs and state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from amp_runtime._core.context import HALF_DTYPES, context
from amp_runtime._core.dtensors import refuse_shards
from amp_runtime._core.hooks import Hook
from amp_runtime._core.models import remember
from amp_runtime._core.trees import map_tensors
from amp_runtime._precision.properties import dtype_of_environment
from amp_runtime.apex._buckets import broadcast
from amp_runtime.apex._half_model import cast_model
from amp_runtime.apex.amp._amp_state import warn_or_err
from amp_runtime.apex.fp16_utils.fp16_optimizer import WrappingOptimizer
from amp_runtime.apex.parallel.distributed import DistributedDataParallel

_NAMES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def half_dtype(device_type: str) -> torch.dtype:
    """The half type of this process: Apex's float16, but bfloat16 on the CPU, where float16 is slow.

    ``AMP_DTYPE=fp16`` or ``bf16`` in the environment, or ``amp_runtime.init("O0", dtype=...)`` before
    ``amp.initialize``, choose it.

    Args:
        device_type: the kind of device that trains, such as ``"cuda"``.

    Raises:
        ValueError: ``AMP_DTYPE`` is something else.
    """
    name = dtype_of_environment() or context.dtype_name
    if name in _NAMES:
        return _NAMES[name]
    return torch.bfloat16 if device_type == "cpu" else torch.float16


def check_models(models: Iterable[Any]) -> None:
    """Refuses models that are wrapped for several devices already, or sharded.

    Raises:
        RuntimeError: one is.
    """
    wrappers = (nn.parallel.DistributedDataParallel, DistributedDataParallel, nn.parallel.DataParallel)
    for model in models:
        refuse_shards(model, "apex.amp.initialize")
        if isinstance(model, wrappers):
            raise RuntimeError(
                f"Incoming model is an instance of {type(model).__module__}.{type(model).__qualname__}. Parallel "
                "wrappers should only be applied to the model(s) AFTER the model(s) have been returned from "
                "amp.initialize."
            )


def check_params_fp32(models: Iterable[nn.Module]) -> None:
    """Refuses models with half parameters or buffers, which would have lost precision already.

    Raises:
        RuntimeError: one has some, and ``_amp_state.hard_override`` is not set.
    """
    for model in models:
        for kind, named in (("param", model.named_parameters()), ("buffer", model.named_buffers())):
            for name, tensor in named:
                if tensor.dtype in HALF_DTYPES:
                    warn_or_err(
                        f"Found {kind} {name} with type {tensor.type()}, expected a float32 tensor.\n"
                        "When using amp.initialize, you do not need to call .half() on your model\n"
                        "before passing it, no matter what optimization level you choose."
                    )


def check_optimizers(optimizers: Iterable[Any]) -> None:
    """Refuses optimizers that keep masters of their own.

    Raises:
        RuntimeError: one is a ``FP16_Optimizer``.
    """
    for optimizer in optimizers:
        if isinstance(optimizer, WrappingOptimizer):
            raise RuntimeError(
                f"An incoming optimizer is an instance of {type(optimizer).__module__}.{type(optimizer).__qualname__}. "
                "The optimizer(s) passed to amp.initialize() must be bare instances of either ordinary Pytorch "
                "optimizers, or fused optimizers of apex.optimizers."
            )


def device_type(models: Iterable[nn.Module]) -> str:
    """The kind of device that the models' parameters are on; without any, CUDA where there is one."""
    for model in models:
        for parameter in model.parameters():
            return parameter.device.type
    return context.device_type()


def cast_tree(value: Any, dtype: torch.dtype) -> Any:
    """``value`` with its floating tensors as ``dtype``: in nested containers, and in objects with ``to``."""
    changed = map_tensors(lambda x: x.to(dtype) if x.is_floating_point() else x, value)
    if changed is value and not isinstance(value, (torch.Tensor, nn.Module, type)) and hasattr(value, "to"):
        return value.to(dtype)
    return changed


class CastInputs:
    """A forward pre-hook: floating inputs as one type."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        inputs = tuple(cast_tree(value, self.dtype) for value in args)
        return inputs, {name: cast_tree(value, self.dtype) for name, value in kwargs.items()}


class CastOutputs:
    """A forward hook: floating outputs as one type."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        return cast_tree(output, self.dtype)


def float_state_dict(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
    """A state-dict hook: a module's own half tensors are saved as float32."""
    for name in (*module._parameters, *module._buffers):
        tensor = state_dict.get(prefix + name)
        if isinstance(tensor, torch.Tensor) and tensor.dtype in HALF_DTYPES:
            state_dict[prefix + name] = tensor.to(torch.float32)


def process_model(model: nn.Module, cast_type: torch.dtype | None, outputs: torch.dtype | None, keep: bool) -> None:
    """Casts a model and hooks the casts of its inputs, outputs and state in.

    Hooks and not, as in Apex, another ``forward``: a copy of the model (for an average of its weights) and the replicas
    of ``DataParallel`` then use their own weights.

    Args:
        model: the model, changed in place.
        cast_type: the type of its weights; ``None`` leaves them.
        outputs: the type of its outputs; ``None`` is float32 for a model that is cast, and else leaves them.
        keep: whether batch norm with weights is left float32.
    """
    remember(model, model)
    first = next(model.parameters(), None)
    if first is not None:
        context.watch(first)
    if cast_type is not None:
        cast_model(model, cast_type, keep)
        model.register_forward_pre_hook(Hook(CastInputs(cast_type)), with_kwargs=True)
        for module in model.modules():
            module._register_state_dict_hook(Hook(float_state_dict))  # type: ignore[no-untyped-call]
        outputs = outputs or torch.float32
    if outputs is not None:
        model.register_forward_hook(Hook(CastOutputs(outputs)))


def broadcast_from_rank_0(models: Iterable[nn.Module]) -> None:
    """Copies rank 0's parameters and buffers to the others, where there are several processes. A collective."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return
    for model in models:
        broadcast([*model.parameters(), *model.buffers()])
