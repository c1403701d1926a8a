"""What O2 and O3 do to a model: half weights and inputs, and what it saves and loads.

The checkpoints of all levels are alike: a half model's ``state_dict`` is float32, exact where it has master
weights, and a float32 one is loaded into the masters before it is rounded.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from amp_runtime._core.context import HALF_DTYPES, context
from amp_runtime._core.hooks import Hook, has_hook, remove_hooks
from amp_runtime._core.models import require_initialised
from amp_runtime._core.trees import to_half
from amp_runtime._precision import masters, policy
from amp_runtime._precision.lacking import cannot_be_half, keep_in_float, narrow_outputs, note, widen_inputs
from amp_runtime._precision.levels import cast_outputs
from amp_runtime._precision.optimizer_state import watch_optimizers
from amp_runtime._precision.wrapping import watch_wrappers

# torch refuses float32 inputs for half weights.
_NORMS = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm)
_PRODUCTS = (nn.Linear, nn.Bilinear, _ConvNd, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
_NORMS_CAST_BY_AUTOCAST = (nn.LayerNorm, nn.GroupNorm)


def require_here() -> None:
    """Does nothing: what stands in for this module, in a copy of the package without it, refuses."""


def make_half(model: nn.Module) -> None:
    """Gives ``model`` half weights and inputs; a second time it changes nothing."""
    require_initialised(model)
    if context.master_weights:
        watch_wrappers()
    kept = _keep_what_cannot_be_half(model)
    for module in model.modules():
        if module not in kept:
            _make_half(module)
    for part in model.modules():
        # A part that was prepared on its own before: the whole casts now.
        remove_hooks(part._forward_hooks, (cast_outputs,))
    if not has_hook(model._forward_pre_hooks, cast_inputs_to_half):
        model.register_forward_pre_hook(Hook(cast_inputs_to_half), with_kwargs=True)


def make_compute_half(model: nn.Module) -> set[nn.Module]:
    """What O2 does to a model whose float32 weights are to be sharded: everything but round its parameters.

    The shards are the masters, and what a block computes with is rounded from them each time it runs. Buffers are
    whole, and treated as in every half model.

    Returns:
        The modules whose weights stay float32 while they run: batch norm, unless ``amp.init`` says otherwise, and what
        the device cannot compute in half.
    """
    require_initialised(model)
    kept = _keep_what_cannot_be_half(model)
    for parameter in model.parameters():
        if parameter.dtype in HALF_DTYPES:
            parameter.data = parameter.data.float()
    for module in model.modules():
        if isinstance(module, _BatchNorm) and context.keep_batchnorm_fp32:
            kept.add(module)
        if module in kept:
            continue
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = _rounded_buffer(buffer)
        if any(True for _ in _own_half_tensors(module)):
            _save_and_load_in_full(module)
        if isinstance(module, (*_NORMS, *_PRODUCTS)) and not has_hook(module._forward_pre_hooks, cast_part_inputs):
            module.register_forward_pre_hook(Hook(cast_part_inputs), with_kwargs=True)
    if model not in kept and not has_hook(model._forward_pre_hooks, cast_inputs_of_shards):
        model.register_forward_pre_hook(Hook(cast_inputs_of_shards), with_kwargs=True)
    return kept


def cast_inputs_of_shards(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A forward pre-hook: float32 inputs in the half type, of a model whose weights are half only while they run."""
    masters.follow_masters()
    dtype = context.half_dtype()
    return to_half(args, dtype), to_half(kwargs, dtype)


def cast_inputs_to_half(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A forward pre-hook: float32 inputs in the dtype of the module's half parameters."""
    if not torch.compiler.is_compiling():  # a graph cannot look at versions; the next step or state_dict does
        masters.follow_masters()
        if torch.is_grad_enabled():
            masters.return_gradients()
    weight = _first_half(_weights(module))
    if weight is None:  # never cast, or cast back by the script
        return None
    return to_half(args, weight.dtype), to_half(kwargs, weight.dtype)


def cast_part_inputs(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A forward pre-hook of a half layer: float32 inputs in its dtype.

    An operation before it may give such, or the script calls it, or a method that calls it, outside of any region.
    """
    own = _first_half(tensor for _, tensor in _own_half_tensors(module))
    if own is None:
        return None
    kind = own.device.type
    if torch.is_autocast_enabled(kind):
        if isinstance(module, _PRODUCTS):  # the region casts
            return None
        if isinstance(module, _NORMS_CAST_BY_AUTOCAST) and (kind != "cpu" or policy.acting()):  # it runs in float32
            return None
    return to_half(args, own.dtype), to_half(kwargs, own.dtype)


def _weights(module: nn.Module) -> Iterator[nn.Parameter]:
    """``module.parameters()``, in words that torch.compile of torch 2.4 understands for every container."""
    for parameter in module._parameters.values():
        if parameter is not None:
            yield parameter
    for part in module._modules.values():
        if part is not None:
            yield from _weights(part)


def _first_half(tensors: Iterable[torch.Tensor]) -> torch.Tensor | None:
    for tensor in tensors:  # not next() with a default, at which torch.compile of torch 2.4 breaks the graph
        if tensor.dtype in HALF_DTYPES:
            return tensor
    return None


def _keep_what_cannot_be_half(model: nn.Module) -> set[nn.Module]:
    """Keeps the modules in float32 whose operations the device lacks in half; returns them and all in them."""
    kept: set[nn.Module] = set()
    for module in model.modules():
        weight = next(module.parameters(recurse=False), None)
        if weight is None or module in kept:
            continue
        kind = weight.device.type
        if cannot_be_half(module, kind, context.half_dtype(kind)):
            keep_in_float(module)
            note(kind, context.half_dtype(kind))
            kept.update(module.modules())
    return kept


def _make_half(module: nn.Module) -> None:
    """Rounds the module's own float32 parameters and buffers, without its children's."""
    if isinstance(module, _BatchNorm) and context.keep_batchnorm_fp32:
        return
    rounded = False
    with torch.no_grad():
        for parameter in module._parameters.values():
            if parameter is not None:
                rounded |= _round(parameter)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = half = _rounded_buffer(buffer)
                rounded |= half.dtype in HALF_DTYPES
    if rounded and _save_and_load_in_full(module):
        module.register_load_state_dict_post_hook(Hook(make_assigned_half))  # type: ignore[no-untyped-call]
    one_type = isinstance(module, (*_NORMS, *_PRODUCTS))
    if rounded and one_type and not has_hook(module._forward_pre_hooks, cast_part_inputs):
        module.register_forward_pre_hook(Hook(cast_part_inputs), with_kwargs=True)
    if rounded and isinstance(module, nn.RNNBase):
        module.flatten_parameters()  # cuDNN wants the new weights in one piece


def _save_and_load_in_full(module: nn.Module) -> bool:
    """Has a module's half tensors saved and loaded as float32; returns whether that is new."""
    if any(isinstance(hook, _Saving) for hook in module._state_dict_hooks.values()):
        return False
    module._register_state_dict_hook(_Saving(module))  # type: ignore[no-untyped-call]
    module._register_load_state_dict_pre_hook(Hook(load_in_full), with_module=True)  # type: ignore[no-untyped-call]
    return True


def _round(parameter: nn.Parameter) -> bool:
    """Rounds one parameter in place; returns whether it is half now."""
    full = parameter.data
    if parameter.dtype is torch.float32:
        # In place: optimizers, hooks and shared layers hold this very object.
        parameter.data = full.to(context.half_dtype(parameter.device.type))
    elif parameter.dtype not in HALF_DTYPES:
        return False
    elif masters.has_master(parameter):
        return True
    if context.master_weights:  # a model that came with half weights needs masters too
        masters.adopt(parameter, full)
        watch_optimizers()
    return True


def _rounded_buffer(buffer: torch.Tensor) -> torch.Tensor:
    if buffer.dtype is not torch.float32:
        return buffer
    half = buffer.to(context.half_dtype(buffer.device.type))
    if context.master_weights:
        masters.adopt(half, buffer)  # never stepped: it is what is saved
    return half


class _Saving(Hook):
    """A module's state dict hook; copied with its module, it gives the copy masters of its own."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(save_in_full)
        self._module = weakref.ref(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Saving:
        module = self._module()
        clone = None if module is None else memo.get(id(module))
        if module is None or not isinstance(clone, nn.Module):
            return self
        for _, tensor in _own_half_tensors(module):
            full, copied = masters.master_of(tensor), copy.deepcopy(tensor, memo)
            if full is not None and copied.dtype in HALF_DTYPES:  # an average of the weights is float32
                masters.adopt(copied, full)
        return _Saving(clone)


def save_in_full(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """A state dict hook: float32 in the place of half.

    Masters are handed out themselves, as torch hands out parameters: what the script writes into them in
    place changes the model. Copies, of tensors without a master, do so until the next forward pass.
    """
    for name, tensor in _own_half_tensors(module):
        saved = state_dict.get(prefix + name)
        if saved is None or saved is tensor:  # not persistent, or asked for with keep_vars=True
            continue
        full = masters.expose(tensor)
        state_dict[prefix + name] = (masters.copy_of(tensor) if full is None else full).detach()


def load_in_full(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any], *_: Any) -> None:
    """A load hook: exact values for the masters, before torch rounds them into the parameters."""
    if metadata.get("assign_to_params_buffers"):
        return
    for name, tensor in _own_half_tensors(module):
        saved = state_dict.get(prefix + name)
        if isinstance(saved, torch.Tensor) and saved.shape == tensor.shape:
            masters.assign(tensor, saved)


def make_assigned_half(module: nn.Module, incompatible_keys: Any) -> None:
    """A hook after loading: parameters that ``load_state_dict(assign=True)`` put in as float32."""
    if context.opt_level in ("O2", "O3"):
        _make_half(module)


def _own_half_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for tensors in (module._parameters, module._buffers):
        for name, tensor in list(tensors.items()):
            if tensor is not None and tensor.dtype in HALF_DTYPES:
                yield name, tensor


_CASTS = (cast_inputs_to_half, cast_part_inputs, cast_outputs, make_assigned_half, widen_inputs, narrow_outputs)


def restore_full_precision(model: nn.Module) -> None:
    """Undoes :func:`make_half` and all casts: half weights and buffers as float32, from their masters."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks, module._load_state_dict_post_hooks):
            remove_hooks(hooks, _CASTS)
        remove_hooks(module._state_dict_hooks, (save_in_full,))
        for name, tensor in _own_half_tensors(module):
            full = masters.master_of(tensor)
            wide = tensor.detach().float() if full is None else full.detach().clone()
            if isinstance(tensor, nn.Parameter):
                tensor.data = wide
                masters.forget(tensor)
            else:
                module._buffers[name] = wide
