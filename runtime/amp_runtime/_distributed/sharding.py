"""Models whose parameters, gradients and optimizer states are shared out over the ranks: torch's FSDP2.

``fully_shard`` is put around each repeated block of a model and then around the model, as torch's own examples do. A
block's weights are whole from the moment it runs until it has run, in the forward and in the backward pass; what an
optimizer holds are float32 shards. The model stays the same object, of a class that torch derives from its own.

What would be wrong in silence is refused: an optimizer over the parameters as they were before, a forward pass that not
all ranks make, wrappers and levels that mean whole parameters.
"""

from __future__ import annotations

import gc
import importlib
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from amp_runtime._core import rows
from amp_runtime._core.context import context
from amp_runtime._core.dtensors import is_sharded, refuse_shards, shard_like
from amp_runtime._core.hooks import Hook
from amp_runtime._core.living import living
from amp_runtime._core.registry import TensorMap
from amp_runtime._distributed.group import from_all_processes, inside_main_process_first

_WITHOUT_FORWARD = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
_CONTAINERS = (nn.ModuleList, nn.Sequential)
_COUNT_UNUSED = "set_reduce_scatter_unused_params"  # since torch 2.13

_OF_WHOLE = ("Adafactor", "LAMB", "LARC", "LARS", "LBFGS", "Muon", "NovoGrad")
"""Optimizers, and ancestors of such, whose step for one element depends on others of the same parameter."""

_replaced: TensorMap[tuple[str, str]] = TensorMap()
"""Parameters that are no longer those of their module: their names, and what has replaced them."""
_sharded = False
_handle: Any = None


def engine() -> Any:
    """torch's module that has ``fully_shard``.

    Raises:
        RuntimeError: this torch has none.
    """
    for name in ("torch.distributed.fsdp", "torch.distributed._composable.fsdp"):  # the second in torch 2.4 and 2.5
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(module, "fully_shard"):
            return module
    raise RuntimeError(
        f"torch {torch.__version__} has no fully_shard, which amp.init(parallel='fsdp') and "
        "amp.prepare_model(shard=True) need; allowed: torch 2.4 or later with torch.distributed, or shard=False"
    )


# ---- what is declined ---------------------------------------------------------------------------------------------


def refuse_settings(caller: str, opt_level: str, master_weights: bool | None, combine_grad: bool) -> None:
    """Refuses what ``amp.init`` was told and shards do not have; in one process too, so that no launch changes it.

    Raises:
        ValueError: there is such a setting.
    """
    if opt_level == "O3":
        raise ValueError(
            f"{caller} got shards at O3; allowed: O0, O1, O2. Shards are float32, and at O3 no float32 weights are kept"
        )
    if opt_level == "O2" and master_weights is False:
        raise ValueError(
            f"{caller} got shards with master_weights=False; allowed: None or True, because the float32 shards are the "
            "masters"
        )
    if combine_grad:
        raise ValueError(
            f"{caller} got shards with combine_grad=True; allowed: False. The gradients of shards cannot be moved into "
            "flat buffers, and torch sends those of a block in one message anyway"
        )


def refuse_keywords(delay_allreduce: bool, message_size: int | None, gradient_predivide_factor: float) -> None:
    """Refuses keywords of ``amp.prepare_model`` that say how whole gradients are averaged.

    Raises:
        ValueError: one of them is given.
    """
    given = {
        "delay_allreduce": delay_allreduce,
        "message_size": message_size is not None,
        "gradient_predivide_factor": float(gradient_predivide_factor) != 1.0,
    }
    for name, value in given.items():
        if value:
            raise ValueError(
                f"amp.prepare_model got {name} with shards; allowed: without it, or shard=False. torch averages the "
                "gradients of shards during the backward pass, a block at a time"
            )


def refuse_model(model: nn.Module, find_unused_parameters: bool) -> None:
    """Refuses models that ``fully_shard`` would not shard, or not rightly.

    Raises:
        RuntimeError: the model is wrapped or sharded already, or is on no device.
        ValueError: it has parameters or gradients of a kind that cannot be shared out, or ``find_unused_parameters``
            is asked of a torch that lacks it.
    """
    fsdp = engine()
    kind = type(model).__name__
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise RuntimeError(f"amp.prepare_model got a {kind} to shard; allowed: the model itself")
    if rows.has_rows(model.parameters()):
        raise ValueError(
            f"amp.prepare_model got a {kind} to shard in which amp.shard_embedding has sharded rows; allowed: one of "
            "the two"
        )
    refuse_shards(model, "amp.prepare_model")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise RuntimeError(f"amp.prepare_model got a {kind} to shard that is on the meta device; give it values first")
    types = {parameter.dtype for parameter in model.parameters()}
    if len(types) > 1 or not all(dtype.is_floating_point for dtype in types):
        listed = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in types))
        raise ValueError(
            f"amp.prepare_model got a {kind} to shard with parameters of {listed}; allowed: one floating type for all"
        )
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            raise ValueError(
                f"amp.prepare_model got a {kind} to shard whose {name or kind} has sparse=True; allowed: without it"
            )
    if any(parameter.dim() == 0 for parameter in model.parameters()):
        raise ValueError(
            f"amp.prepare_model got a {kind} to shard with a parameter of no dimension; allowed: one of shape (1,)"
        )
    if find_unused_parameters and not hasattr(fsdp.FSDPModule, _COUNT_UNUSED):
        raise ValueError(
            "amp.prepare_model got find_unused_parameters=True with shards; allowed: False before torch 2.13, where "
            "all ranks have to use the same parameters"
        )


def has_sharded_models() -> bool:
    """Whether a model was sharded since ``amp.init``, or a table of one shared out.

    Not whether it is alive still: ranks collect garbage at other times, and what is decided by this has to be equal.
    """
    return _sharded or rows.any_tables()


# ---- sharding -----------------------------------------------------------------------------------------------------


def shard(
    model: nn.Module,
    *,
    kept: Collection[nn.Module] = (),
    half: torch.dtype | None = None,
    always_fp32: bool = False,
    unused: bool = False,
) -> list[nn.Module]:
    """Shares the parameters of ``model`` out over all ranks, in place. A collective.

    Args:
        model: a model with the same whole parameters on all ranks.
        kept: its modules that compute in the type of the shards.
        half: the type in which all others compute; ``None`` is that of the shards.
        always_fp32: half gradients are averaged in float32.
        unused: parameters without a gradient on some rank count as zero there, and all are whole at once.

    Returns:
        The blocks that are whole one at a time, without the model itself.

    Raises:
        RuntimeError: an optimizer on some rank holds the parameters as they are now.
        ValueError: ``unused`` is asked for, and some modules have to be sharded by themselves.
    """
    global _sharded
    refuse_early_optimizers(model, model.parameters(), "amp.prepare_model")
    fsdp = engine()
    mesh = _mesh(next(model.parameters()).device.type)
    plain = fsdp.MixedPrecisionPolicy(cast_forward_inputs=False)
    reduced = torch.float32 if always_fp32 else None
    cast = plain if half is None else fsdp.MixedPrecisionPolicy(half, reduced, cast_forward_inputs=False)
    kind = type(model).__name__
    before = [(parameter, f"{kind}.{name}") for name, parameter in model.named_parameters()]
    alone = _outermost(model, kept) if half is not None else []
    covered = {id(module) for part in alone for module in part.modules()}
    # A block that some rank leaves out would keep the others waiting for its shards, so there is none then.
    blocks = [] if unused else [block for block in blocks_of(model) if id(block) not in covered]
    if unused and any(part is not model for part in alone):
        raise ValueError(
            f"amp.prepare_model got find_unused_parameters=True for a {kind} to shard at O2 in which a "
            f"{type(alone[0]).__name__} keeps float32 weights and so is sharded by itself; allowed: O0 or O1, or "
            "amp.init(keep_batchnorm_fp32=False) for batch norm"
        )
    for part in (*(part for part in alone if part is not model), *blocks, model):
        # Also the model itself is sharded again after a forward pass: else its own weights stay whole where no backward
        # pass follows, and whoever reads parameters then finds others than those of the optimizer.
        policy = plain if part in alone else cast
        fsdp.fully_shard(part, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    if unused:
        getattr(model, _COUNT_UNUSED)(True)
    note_replaced(before, "amp.prepare_model")
    for module in model.modules():
        if module._parameters:
            module._register_load_state_dict_pre_hook(Hook(load_shards), with_module=True)  # type: ignore[no-untyped-call]
    model.register_forward_pre_hook(Hook(_refuse_to_run_alone), prepend=True)
    model.register_forward_hook(Hook(_shard_again))
    _sharded = True
    return blocks


def _mesh(device_type: str) -> Any:
    """The processes that share a model out: all of them, or those of each machine, which then has a copy of its own.

    Raises:
        RuntimeError: for the second, machines have different numbers of processes, or ranks that do not follow each
            other.
    """
    make = importlib.import_module("torch.distributed.device_mesh").init_device_mesh
    if context.parallel != "hsdp":
        return make(device_type, (context.world_size,))
    places = from_all_processes(context.local_rank)
    machines = places.count(0)
    if machines < 1 or places != [*range(context.world_size // machines)] * machines:
        raise RuntimeError(
            f"amp.init(parallel='hsdp') found the local ranks {places}; allowed: as many processes on each machine, "
            "with ranks that follow each other. parallel='fsdp' shards over all processes"
        )
    return make(device_type, (machines, context.world_size // machines), mesh_dim_names=("replicate", "shard"))


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a model, inner ones before those that they are in.

    They are the modules of one class that occur more than once in an ``nn.ModuleList`` or ``nn.Sequential``, and that
    are made of modules themselves; in a model without such ones, its repeated layers. A module whose parameters are
    used elsewhere in the model too, as those of a tied embedding, is none.
    """
    repeated = _repeated(model)
    return [m for m in repeated if any(True for _ in m.children())] or repeated


def _repeated(model: nn.Module) -> list[nn.Module]:
    slots = Counter(_slots(model))
    chosen: dict[int, nn.Module] = {}
    for container in model.modules():
        if not isinstance(container, _CONTAINERS):
            continue
        children = list({id(child): child for child in container.children()}.values())
        kinds = Counter(map(type, children))
        for child in children:
            own = Counter(_slots(child))
            runs = not isinstance(child, _WITHOUT_FORWARD) and type(child).forward is not nn.Module.forward
            if kinds[type(child)] > 1 and runs and own and all(slots[key] == count for key, count in own.items()):
                chosen[id(child)] = child
    return [module for module in reversed(list(model.modules())) if id(module) in chosen and module is not model]


def _slots(module: nn.Module) -> Iterator[int]:
    """The identities of a module's parameters, as often as they stand there."""
    for part in module.modules():
        yield from (id(parameter) for parameter in part._parameters.values() if parameter is not None)


def _outermost(model: nn.Module, kept: Collection[nn.Module]) -> list[nn.Module]:
    """Those of ``kept`` with parameters that are in no other of them."""
    inner = {id(part) for module in kept for part in module.modules() if part is not module}
    return [m for m in model.modules() if m in kept and id(m) not in inner and next(m.parameters(), None) is not None]


def _refuse_to_run_alone(model: nn.Module, args: Any) -> None:
    """A forward pre-hook: a forward pass needs all ranks, which send their shards."""
    if inside_main_process_first():
        raise RuntimeError(
            "a sharded model was called inside amp.main_process_first(), where the ranks take turns; all ranks have "
            "to call it together"
        )
    if context.evaluations:
        raise RuntimeError(
            "a sharded model was called in a loop over amp.share_evaluation, where the ranks have different numbers of "
            "batches; evaluate on a loader that every rank reads alike"
        )


def _shard_again(model: Any, args: Any, output: Any) -> None:
    """A forward hook: older torch leaves the model's own weights whole, whatever it was told."""
    model.reshard()


# ---- state of whole tensors ---------------------------------------------------------------------------------------


def load_shards(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """A load hook: this rank's shards of whole values, as replicated models have saved them."""
    for name, own in module._parameters.items():
        value = state_dict.get(prefix + name)
        if own is not None and is_sharded(own) and isinstance(value, torch.Tensor) and not is_sharded(value):
            if value.shape == own.shape:  # torch tells of others
                state_dict[prefix + name] = shard_like(value, own)


# ---- optimizers ---------------------------------------------------------------------------------------------------


def refuse_early_optimizers(module: nn.Module, parameters: Iterable[torch.Tensor], caller: str) -> None:
    """Refuses to shard what an optimizer holds already, on all ranks if it is so on one. A collective.

    Raises:
        RuntimeError: an optimizer of some rank holds one of the ``parameters``.
    """
    held = {id(parameter) for parameter in parameters}
    if _holders(held):
        gc.collect()  # it may be one that the script has let go of
    found = [type(optimizer).__name__ for optimizer in _holders(held)]
    if any(from_all_processes(bool(found))):
        named = f"a {found[0]} of this rank" if found else "an optimizer of another rank"
        raise RuntimeError(
            f"{caller} got a {type(module).__name__} to shard whose parameters {named} holds already: it would "
            f"go on with the whole ones, which train no more. Build the optimizer after {caller}"
        )


def _holders(held: set[int]) -> list[torch.optim.Optimizer]:
    return [
        optimizer
        for optimizer in living(torch.optim.Optimizer)
        if any(id(p) in held for group in getattr(optimizer, "param_groups", ()) for p in group["params"])
    ]


def refuse_replaced(parameters: Iterable[Any], caller: str) -> None:
    """Refuses parameters as they were before their model was sharded: nothing trains them any more.

    Raises:
        RuntimeError: there is one.
    """
    if not _replaced:
        return
    found = next((found for p in parameters if (found := _replaced.get(p)) is not None), None)
    if found is not None:
        name, sharder = found
        raise RuntimeError(
            f"{caller} got {name} as it was before {sharder} sharded it, which trains no more. Ask for the "
            f"parameters after {sharder}, and build optimizers of these"
        )


def refuse_for_rows(optimizer: torch.optim.Optimizer) -> None:
    """Refuses an optimizer that would take the rows of one rank for a whole table.

    Raises:
        RuntimeError: it holds some.
    """
    if not any(base.__name__ in _OF_WHOLE for base in type(optimizer).__mro__):
        return
    if rows.has_rows(parameter for group in optimizer.param_groups for parameter in group["params"]):
        raise RuntimeError(
            f"a {type(optimizer).__name__} got rows that amp.shard_embedding has sharded; allowed: an optimizer "
            "that treats each row by itself, such as SGD, Adam, AdamW, Adagrad or SparseAdam, because this one "
            "takes a norm or a product of the whole table"
        )


def note_replaced(parameters: Iterable[tuple[torch.Tensor, str]], sharder: str) -> None:
    """Notes parameters that their module has no longer, with their names, and what has put others in their place."""
    for parameter, name in parameters:
        _replaced[parameter] = name, sharder
    _watch_steps()


def refuse_replaced_together(parameters: Iterable[Any], caller: str) -> None:
    """:func:`refuse_replaced` on all ranks if it is so on one. A collective where there are sharded models."""
    if not has_sharded_models():
        return
    problem = ""
    try:
        refuse_replaced(parameters, caller)
    except RuntimeError as error:
        problem = str(error)
    told = [text for text in from_all_processes(problem) if text]
    if told:
        raise RuntimeError(problem or f"on another rank: {told[0]}")


def _watch_steps() -> None:
    global _handle
    if _handle is None:
        _handle = register_optimizer_step_pre_hook(_refuse_replaced_in)


_seen: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()


def _refuse_replaced_in(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """What torch calls before each step: looks at an optimizer when it is new, or has other parameters."""
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if _seen.get(optimizer) != len(held):
        refuse_replaced(held, f"the step of a {type(optimizer).__name__}")
        refuse_for_rows(optimizer)
        _seen[optimizer] = len(held)


def forget_all() -> None:
    """Forgets the models; ``amp.shutdown`` does it."""
    global _handle, _sharded
    if _handle is not None:
        _handle.remove()
        _handle = None
    _sharded = False
    _replaced.clear()
    _seen.clear()
