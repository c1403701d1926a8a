"""``amp.prepare_model`` and ``amp.unwrap``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from amp_runtime._core.context import HALF_DTYPES, context
from amp_runtime._core.models import prepared, remember
from amp_runtime._core.trees import to_float, to_half
from amp_runtime._distributed import averaging
from amp_runtime._distributed.ddp import DistributedModel, distribute
from amp_runtime._distributed.group import flag_device
from amp_runtime._distributed.syncbn import synchronise_batch_norm
from amp_runtime._precision import masters


def prepare_model(
    model: nn.Module,
    *,
    delay_allreduce: bool = False,
    find_unused_parameters: bool = False,
    sync_bn: bool | None = None,
) -> Any:
    """Prepares a model for the precision and the processes of ``amp.init``.

    In this order: rank 0's weights on all ranks, synchronised batch norm, precision, gradient averaging. The
    parameters stay the same objects, so the optimizer may be built before or after. At O0 in one process the
    model is returned untouched, and a prepared model is returned as it is.

    From O1 the model's half-precision outputs come back as float32, also in nested tuples, lists, mappings
    and dataclasses, so that losses, ``.numpy()`` and metrics of the script go on working. At O2 parameters
    become half, except in batch norm, with FP32 master weights that ``amp.scaler.step`` updates; at O3 all
    parameters and buffers become half. At both, float32 inputs are cast.

    Args:
        model: the model, on its device, with its weights initialised or loaded.
        delay_allreduce: average the gradients once, when ``amp.scaler.unscale_`` or ``step`` runs for their
            optimizer, instead of during each backward pass. For models that take part in several backward
            passes before a step, or whose parameters are not always used; the model itself is returned. Its
            synchronised batch norm can be differentiated twice, as a gradient penalty does, also on CUDA.
        find_unused_parameters: let torch DDP search each graph for parameters that take no part in it.
        sync_bn: synchronise batch norm, whatever ``amp.init`` was told.

    Returns:
        The model itself, or in several processes a :class:`DistributedModel` around it.

    Raises:
        TypeError: ``model`` is not a module.
        RuntimeError: it is wrapped in torch's DDP already, at O2 or O3.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"amp.prepare_model got {type(model).__name__}; allowed: a torch.nn.Module")
    if isinstance(model, DistributedModel):
        return model
    earlier = prepared(model)
    if earlier is not None:
        return earlier
    model = _without_data_parallel(model)
    if not context.initialised:
        return model
    if context.opt_level in ("O2", "O3") and isinstance(model, nn.parallel.DistributedDataParallel):
        raise RuntimeError(
            f"amp.prepare_model got a model that is wrapped in {type(model).__name__} already, at {context.opt_level}: "
            "its buckets hold float32. Prepare the model first and wrap it afterwards, or use O0 or O1"
        )
    first = next(model.parameters(), None)
    if first is not None:
        context.watch(first)
    if not context.mixed and not context.distributed:
        return model
    _accept_module_prefix(model)
    if context.distributed:
        _copy_from_main_process(model)
        if context.sync_bn if sync_bn is None else sync_bn:
            # Models of several backward passes are those that may have a gradient penalty.
            synchronise_batch_norm(model, twice_differentiable=delay_allreduce)
    if context.mixed:
        _set_precision(model)
    result = model
    if context.distributed and any(p.requires_grad for p in model.parameters()):
        if delay_allreduce:
            averaging.delay(model.parameters())
        else:
            result = distribute(model, find_unused_parameters)
    remember(model, result)
    return result


def unwrap(model: Any) -> Any:
    """The model itself, out of what ``prepare_model`` or torch's parallel wrappers put around it."""
    while isinstance(model, (DistributedModel, nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model = model.module
    return model


def _without_data_parallel(model: nn.Module) -> nn.Module:
    """``nn.DataParallel`` would share one process's batch out over GPUs that belong to other processes."""
    if context.distributed and isinstance(model, nn.DataParallel):
        inner: nn.Module = model.module
        return inner
    return model


def _set_precision(model: nn.Module) -> None:
    if context.opt_level in ("O2", "O3"):
        _round_parameters(model, everything=context.opt_level == "O3")
        model.register_forward_pre_hook(_Hook(cast_inputs_to_half), with_kwargs=True)
    model.register_forward_hook(_Hook(cast_outputs_to_float))


class _Hook:
    """A hook that a copy of the model keeps, and a pickled model does not.

    So a saved model can be loaded without this package, and prepared again with it.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def __call__(self, *args: Any) -> Any:
        return self._run(*args)

    def __deepcopy__(self, memo: Any) -> _Hook:
        return self

    def __reduce__(self) -> Any:
        # In the standard library, takes any arguments and returns None: as a hook of any kind it does nothing.
        return getattr, (nullcontext(), "__exit__")


def cast_outputs_to_float(module: nn.Module, args: Any, output: Any) -> Any:
    """A forward hook: half-precision outputs as float32."""
    return to_float(output) if context.mixed else None


def cast_inputs_to_half(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A forward pre-hook: float32 inputs in the dtype of the module's half parameters."""
    dtype = next((p.dtype for p in module.parameters() if p.dtype in HALF_DTYPES), None)
    if dtype is None:  # a later model.float() undid it
        return None
    return to_half(args, dtype), to_half(kwargs, dtype)


def _round_parameters(model: nn.Module, everything: bool) -> None:
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, _BatchNorm) and not everything:
                continue
            for parameter in module.parameters(recurse=False):
                full = parameter.data
                if parameter.dtype is torch.float32:
                    # In place: optimizers, hooks and shared layers hold this very object.
                    parameter.data = full.to(context.half_dtype(parameter.device.type))
                elif parameter.dtype not in HALF_DTYPES or masters.has_master(parameter):
                    continue
                if not everything:  # a model that was saved whole comes with half weights, and needs masters too
                    masters.adopt(parameter, full)
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.dtype is torch.float32:
                    module._buffers[name] = buffer.to(context.half_dtype(buffer.device.type))


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _copy_from_main_process(model: nn.Module) -> None:
    for tensor in _tensors(model):
        if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
            raise RuntimeError(
                f"amp.prepare_model got a {type(model).__name__} with lazy parameters; run one batch through it first"
            )
        data = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        box = data.to(flag_device(data.device)).contiguous()
        if box.dtype is torch.bool:  # NCCL and gloo carry bytes, not bools
            box = box.to(torch.uint8)
        dist.broadcast(box, src=0)
        if box.data_ptr() != data.data_ptr() or box.dtype is not data.dtype:
            data.copy_(box)


def _accept_module_prefix(model: nn.Module) -> None:
    """Lets checkpoints of ``nn.DataParallel`` and torch DDP load, whose keys all begin with ``module.``."""
    register = getattr(model, "register_load_state_dict_pre_hook", None)  # public since torch 2.5
    hook = _Hook(strip_module_prefix)
    if register is not None:
        register(hook)
    else:
        model._register_load_state_dict_pre_hook(hook, with_module=True)  # type: ignore[no-untyped-call]


def strip_module_prefix(
    module: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    *_: Any,
) -> None:
    """A load hook.

    Drops ``module.`` from the keys under ``prefix``, if all have it and the model has no ``module``.
    """
    keys = [key for key in state_dict if key.startswith(prefix)]
    marked = prefix + "module."
    if not keys or hasattr(module, "module") or not all(key.startswith(marked) for key in keys):
        return
    for key in keys:
        state_dict[prefix + key[len(marked) :]] = state_dict.pop(key)
