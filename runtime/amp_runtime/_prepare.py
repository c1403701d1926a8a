"""``amp.prepare_model`` and ``amp.unwrap``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from amp_runtime._core.context import context
from amp_runtime._core.hooks import Hook
from amp_runtime._core.models import prepared, remember
from amp_runtime._distributed import averaging, buffers
from amp_runtime._distributed.copying import copy_from_main_process
from amp_runtime._distributed.ddp import DistributedModel, distribute
from amp_runtime._distributed.module_prefix import only_names
from amp_runtime._distributed.operations import try_operations
from amp_runtime._distributed.options import checked_exchange
from amp_runtime._distributed.syncbn import synchronise_batch_norm
from amp_runtime._precision import half_models
from amp_runtime._precision.levels import watch_outputs
from amp_runtime._precision.replicas import watch_replicas


def prepare_model(
    model: nn.Module,
    *,
    delay_allreduce: bool = False,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
    sync_bn: bool | None = None,
    message_size: int | None = None,
    gradient_predivide_factor: float = 1.0,
    allreduce_always_fp32: bool = False,
) -> Any:
    """Prepares a model for the precision and the processes of ``amp.init``.

    In this order: rank 0's weights on all ranks, synchronised batch norm, precision, gradient averaging. The
    parameters stay the same objects, so the optimizer may be built before or after. At O0 in one process the
    model is returned untouched, and a prepared model is returned as it is.

    From O1 the model's half-precision outputs come back as float32, also in nested tuples, lists, mappings
    and dataclasses, so that losses, ``.numpy()`` and metrics of the script go on working. The replicas of an
    ``nn.DataParallel`` run in the region that calls them; where it is put around the prepared model, in that of
    ``amp.init``, whatever ``amp.autocast`` was given. At O2 parameters
    become half, except in batch norm, with FP32 master weights that ``amp.scaler.step`` updates; at O3 all
    parameters and buffers become half. At both, float32 inputs are cast. ``amp.init`` may say otherwise, with
    ``keep_batchnorm_fp32``, ``master_weights`` and ``cast_model_outputs``.

    A module without parameters, such as a loss that keeps a running mean, is returned itself at every level; its
    buffers become rank 0's after each step, as those of models do.

    Checkpoints are the same at all levels: ``state_dict()`` of a half model gives float32, of its masters where
    it has them, and float32 values are loaded into the masters without rounding; so is an optimizer's state.
    Where there are masters, pickling the model gives a float32 model. The gradients of a half model are half
    while they are accumulated; after ``amp.scaler.unscale_`` they are float32.

    Args:
        model: the model, on its device, with its weights initialised or loaded.
        delay_allreduce: average the gradients once, when ``amp.scaler.unscale_`` or ``step`` runs for their
            optimizer, instead of during each backward pass. For models that take part in several backward
            passes before a step, or whose parameters are not always used; the model itself is returned. Its
            synchronised batch norm can be differentiated twice, as a gradient penalty does, also on CUDA.
        find_unused_parameters: let torch DDP search each graph for parameters that take no part in it.
        static_graph: promise torch DDP that every step uses the same parameters in the same way; it then needs no
            search for unused ones and allows checkpointed activations to be used twice.
        sync_bn: synchronise batch norm, whatever ``amp.init`` was told.
        message_size: elements of a gradient bucket, as in Apex; ``None`` leaves it to torch.
        gradient_predivide_factor: gradients are divided by it before they are summed over the processes and by
            the rest of the world size afterwards, so that sums of many half gradients stay in range.
        allreduce_always_fp32: half gradients are summed over the processes in float32.

    Returns:
        The model itself, or in several processes a :class:`DistributedModel` around it; what
        :func:`keep_module_prefix` made stays the outermost.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: ``message_size`` or ``gradient_predivide_factor`` is not positive, or
            ``delay_allreduce`` and ``static_graph`` are both given.
        RuntimeError: it is wrapped in torch's DDP already, at O2 or O3.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"amp.prepare_model got {type(model).__name__}; allowed: a torch.nn.Module")
    exchange = checked_exchange(message_size, gradient_predivide_factor, allreduce_always_fp32)
    if delay_allreduce and static_graph:
        raise ValueError(
            "amp.prepare_model got delay_allreduce=True and static_graph=True; allowed: one of them, because only "
            "torch DDP, which averages during the backward pass, looks at the graph"
        )
    if isinstance(model, DistributedModel):
        return model
    if only_names(model):
        model.module = prepare_model(
            model.module,
            delay_allreduce=delay_allreduce,
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            sync_bn=sync_bn,
            message_size=message_size,
            gradient_predivide_factor=gradient_predivide_factor,
            allreduce_always_fp32=allreduce_always_fp32,
        )
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
    if first is None:
        return _without_parameters(model, sync_bn)
    context.watch(first)
    if not context.mixed and not context.distributed:
        if context.cast_model_outputs is not None:
            watch_outputs(model)
        if context.cast_model_outputs is not None or context.scales_always:
            remember(model, model)  # the scaler looks for gradients in it that no optimizer holds
        return model
    _accept_module_prefix(model)
    if context.distributed:
        copy_from_main_process(model)
        if context.sync_bn if sync_bn is None else sync_bn:
            # Models of several backward passes are those that may have a gradient penalty.
            synchronise_batch_norm(model, twice_differentiable=delay_allreduce)
    if context.mixed:
        # Here and not at the first region: every rank comes here, and nothing is compiled or captured yet.
        try_operations(torch.device(context.device_type()) if first.is_meta else first.device)
    if context.mixed or context.cast_model_outputs is not None:
        _set_precision(model)
    result = model
    if context.distributed and any(p.requires_grad for p in model.parameters()):
        if delay_allreduce:
            averaging.delay(model, exchange)
        else:
            result = distribute(model, find_unused_parameters, static_graph, exchange)
    remember(model, result)
    if context.distributed:
        buffers.watch(model)
    return result


def unwrap(model: Any) -> Any:
    """The model itself, out of what ``prepare_model`` or torch's parallel wrappers put around it.

    Args:
        model: a model, wrapped any number of times or not at all.
    """
    while isinstance(model, (DistributedModel, nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model = model.module
    return model


def _set_precision(model: nn.Module) -> None:
    """Gives ``model`` the precision of ``amp.init``; a second time it changes nothing."""
    if context.opt_level in ("O2", "O3"):
        half_models.make_half(model)
    watch_outputs(model)
    if context.mixed:
        watch_replicas(model)


def _without_parameters(model: nn.Module, sync_bn: bool | None) -> nn.Module:
    """A loss, say, of which only the buffers matter: a centre or a running mean that its forward pass writes."""
    if context.distributed:
        copy_from_main_process(model)
        if context.sync_bn if sync_bn is None else sync_bn:
            synchronise_batch_norm(model)
        remember(model, model)
        buffers.watch(model)
    return model


def _without_data_parallel(model: nn.Module) -> nn.Module:
    """``nn.DataParallel`` would share one process's batch out over GPUs that belong to other processes."""
    if context.distributed and isinstance(model, nn.DataParallel):
        inner: nn.Module = model.module
        return inner
    return model


def _accept_module_prefix(model: nn.Module) -> None:
    """Lets checkpoints of ``nn.DataParallel`` and torch DDP load, whose keys all begin with ``module.``."""
    register = getattr(model, "register_load_state_dict_pre_hook", None)  # public since torch 2.5
    hook = Hook(strip_module_prefix)
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
