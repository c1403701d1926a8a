"""``amp.prepare_model`` and ``amp.unwrap``."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn

from amp_runtime._core.context import SHARDED, context
from amp_runtime._core.hooks import Hook
from amp_runtime._core.models import prepared, remember
from amp_runtime._distributed import averaging, buffers, sharding
from amp_runtime._distributed.batchnorm import synchronise_batch_norm
from amp_runtime._distributed.copying import copy_from_main_process
from amp_runtime._distributed.ddp import DistributedModel, distribute
from amp_runtime._distributed.engine import averaged_slots
from amp_runtime._distributed.module_prefix import only_names
from amp_runtime._distributed.operations import try_operations
from amp_runtime._distributed.options import checked_exchange
from amp_runtime._precision import half_models
from amp_runtime._precision.cached_casts import watch_passes
from amp_runtime._precision.levels import watch_outputs
from amp_runtime._precision.optimizer_state import watch_optimizers
from amp_runtime._precision.replicas import watch_replicas


def prepare_model(
    model: nn.Module,
    *,
    shard: bool | None = None,
    delay_allreduce: bool = False,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
    sync_bn: bool | None = None,
    message_size: int | None = None,
    gradient_predivide_factor: float = 1.0,
    allreduce_always_fp32: bool = False,
) -> Any:
    """Prepares a model for the precision and the processes of ``amp.init``.

    In this order: rank 0's weights on all ranks, synchronised batch norm, precision, gradient averaging or
    sharding. Unless the model is sharded the parameters stay the same objects, so the optimizer may be built before or
    after. At O0 in one process the model is returned untouched, and a prepared model is returned as it is.

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
    Where there are masters, pickling the model gives a float32 model. Where the script puts torch DDP around the
    prepared model itself, all ranks get rank 0's masters then, as torch DDP gives them its weights. The gradients of a
    half model are half while they are accumulated; after ``amp.scaler.unscale_`` they are float32.

    A sharded model is torch's FSDP2: each rank holds a part of every parameter, of its gradient and of the optimizer's
    state, and the weights of a repeated block are whole only while the block runs. The model stays the same object, its
    parameters do not, so the optimizer is built afterwards. At O1 the shards are float32; at O2 they are the masters,
    rounded each time a block runs, and batch norm stays float32. All ranks must run each forward pass, in evaluations
    too. ``docs/sharding.md`` has a table of what works with shards and what is declined. In one process nothing is
    sharded.

    Args:
        model: the model, on its device, with its weights initialised or loaded.
        shard: share the parameters out over the ranks; ``None`` is what ``amp.init(parallel=)`` says.
        delay_allreduce: average the gradients once, when ``amp.scaler.unscale_`` or ``step`` runs for their
            optimizer, instead of during each backward pass. For models that take part in several backward
            passes before a step; the model itself is returned. Its synchronised batch norm can be differentiated twice,
            as a gradient penalty does, also on CUDA.
        find_unused_parameters: let torch DDP search each graph for parameters that take no part in it. Without it they
            count as zero when ``amp.scaler.unscale_`` or ``step`` runs, which is enough unless the script steps an
            optimizer by itself. With shards, from torch 2.13 on, the gradients of such are zero, and no block is whole
            by itself: ranks may leave out others.
        static_graph: promise torch DDP that every step uses the same parameters in the same way; it then needs no
            search for unused ones and allows checkpointed activations to be used twice.
        sync_bn: synchronise batch norm, whatever ``amp.init`` was told.
        message_size: elements of a gradient bucket, as in Apex; ``None`` leaves it to torch.
        gradient_predivide_factor: gradients are divided by it before they are summed over the processes and by
            the rest of the world size afterwards, so that sums of many half gradients stay in range.
        allreduce_always_fp32: half gradients are summed over the processes in float32.

    Returns:
        The model itself, or in several processes a :class:`DistributedModel` around it, unless it is sharded; what
        :func:`keep_module_prefix` made stays the outermost.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: ``message_size`` or ``gradient_predivide_factor`` is not positive;
            ``delay_allreduce`` and ``static_graph`` are both given; or shards are asked for at O3, or with another
            option or a parameter that they do not have.
        RuntimeError: it is wrapped in torch's DDP already, at O2 or O3; its parameters are sharded already; or it is to
            be sharded and an optimizer holds its parameters, or torch has no ``fully_shard``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"amp.prepare_model got {type(model).__name__}; allowed: a torch.nn.Module")
    exchange = checked_exchange(message_size, gradient_predivide_factor, allreduce_always_fp32)
    if delay_allreduce and static_graph:
        raise ValueError(
            "amp.prepare_model got delay_allreduce=True and static_graph=True; allowed: one of them, because only "
            "torch DDP, which averages during the backward pass, looks at the graph"
        )
    shards = context.parallel in SHARDED if shard is None else shard
    if shards:
        sharding.refuse_keywords(delay_allreduce, message_size, gradient_predivide_factor)
        caller = "amp.prepare_model"
        sharding.refuse_settings(caller, context.opt_level, context.master_weights, context.combine_grad)
    if isinstance(model, DistributedModel):
        return model
    if only_names(model):
        model.module = prepare_model(
            model.module,
            shard=shard,
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
    if context.distributed:
        sharding.refuse_replaced(model.parameters(), "amp.prepare_model")
    if not context.mixed and not context.distributed:
        if context.cast_model_outputs is not None:
            watch_outputs(model)
        if context.cast_model_outputs is not None or context.scales_always:
            remember(model, model)  # the scaler looks for gradients in it that no optimizer holds
        return model
    if shards and context.distributed:
        sharding.refuse_model(model, find_unused_parameters)
    _accept_module_prefix(model)
    if context.distributed:
        copy_from_main_process(model)
        if context.sync_bn if sync_bn is None else sync_bn:
            # Models of several backward passes are those that may have a gradient penalty.
            synchronise_batch_norm(model, twice_differentiable=delay_allreduce)
    if context.mixed:
        # Here and not at the first region: every rank comes here, and nothing is compiled or captured yet.
        try_operations(torch.device(context.device_type()) if first.is_meta else first.device)
    if shards and context.distributed:
        return _sharded(model, find_unused_parameters, allreduce_always_fp32)
    if context.mixed or context.cast_model_outputs is not None:
        _set_precision(model)
    result = model
    if context.distributed and any(p.requires_grad for p in averaged_slots(model)):
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
    if context.opt_level in ("O2", "O3") and not getattr(model, "trains_in_float32", False):
        half_models.make_half(model)
    watch_outputs(model)
    if context.mixed:
        watch_passes(model)
        watch_replicas(model)


def _sharded(model: nn.Module, unused: bool, always_fp32: bool) -> nn.Module:
    """Gives ``model`` the precision of ``amp.init``, and shares its parameters out over the ranks. A collective."""
    kept: set[nn.Module] = set()
    half: torch.dtype | None = None
    if context.opt_level == "O2":
        kept = half_models.make_compute_half(model)
        first = next(model.parameters())
        if first.dtype is torch.float32:
            half = context.half_dtype(first.device.type)
    if context.mixed or context.cast_model_outputs is not None:
        watch_outputs(model)
    blocks = sharding.shard(model, kept=kept, half=half, always_fp32=always_fp32, unused=unused)
    watch_optimizers()
    context.watch(next(model.parameters()))
    remember(model, model)
    buffers.watch(model)
    if context.verbose and context.rank == 0:
        counted = Counter(type(block).__name__.removeprefix("FSDP") for block in blocks)
        listed = ", ".join(f"{count} {kind}" for kind, count in counted.items()) or "no repeated blocks"
        print(f"amp: sharded over {context.world_size} processes: {listed}, and the rest of the model")
    return model


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
