"""Half models and float32 masters, made by hand.

Half is float16 here, on every device: these scripts say ``.half()``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from amp_runtime.apex._half_model import cast_model

clip_grad_norm = nn.utils.clip_grad_norm_


class tofp16(nn.Module):
    """A module that casts its input to float16."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input`` as float16."""
        return input.half()


def BN_convert_float(module: nn.Module) -> nn.Module:
    """Casts the batch norms with weights in ``module`` to float32, in place, and returns it."""
    for part in module.modules():
        if isinstance(part, _BatchNorm) and part.affine:
            part.float()
    return module


def network_to_half(network: nn.Module) -> nn.Module:
    """A module that casts its input to float16 and then calls ``network``, which is half except in batch norm.

    The keys of its ``state_dict`` begin with ``1.``.
    """
    return nn.Sequential(tofp16(), BN_convert_float(network.half()))


def convert_module(module: nn.Module, dtype: torch.dtype) -> None:
    """Casts a module's own floating parameters and buffers, not those of its children, in place."""
    for parameter in module.parameters(recurse=False):
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to(dtype)
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.is_floating_point():
            module._buffers[name] = buffer.to(dtype)


def convert_network(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Casts a model except its batch norms with weights, in place, and returns it."""
    cast_model(network, dtype, keep_batchnorm_fp32=True)
    return network


class FP16Model(nn.Module):
    """Calls a model, cast to float16 except in batch norm, with its tensor arguments as float16.

    Args:
        network: the model, cast in place.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = convert_network(network, dtype=torch.float16)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Calls the model."""
        return self.network(*(tensor.half() for tensor in inputs))


def prep_param_lists(model: nn.Module, flat_master: bool = False) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The trainable parameters of a model, and float32 masters of them.

    Args:
        model: the model.
        flat_master: one master for all of them, a vector.

    Returns:
        ``(model_params, master_params)``.

    Raises:
        RuntimeError: ``flat_master`` with parameters of several types.
    """
    model_params: list[torch.Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not flat_master:
        masters = [nn.Parameter(parameter.detach().to(torch.float32, copy=True)) for parameter in model_params]
        return model_params, list(masters)
    kinds = {parameter.dtype for parameter in model_params}
    if len(kinds) > 1:
        raise RuntimeError(
            f"prep_param_lists got a model with parameters of the types {', '.join(sorted(map(str, kinds)))}; "
            "flat_master=True allows: a single type"
        )
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model_params]).float()
    master = nn.Parameter(flat)
    master.grad = torch.zeros_like(flat)
    return model_params, [master]


def model_grads_to_master_grads(
    model_params: Sequence[torch.Tensor], master_params: Sequence[torch.Tensor], flat_master: bool = False
) -> None:
    """Copies gradients to the masters of ``prep_param_lists``.

    Args:
        model_params: the model's parameters.
        master_params: their masters.
        flat_master: whether there is one master, a vector.
    """
    with torch.no_grad():
        if flat_master:
            pieces = [p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in model_params]
            master_params[0].grad = torch.cat(pieces).to(master_params[0].dtype)
            return
        for parameter, master in zip(model_params, master_params, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.detach().to(master.dtype, copy=True)


def master_params_to_model_params(
    model_params: Sequence[torch.Tensor], master_params: Sequence[torch.Tensor], flat_master: bool = False
) -> None:
    """Rounds the masters of ``prep_param_lists`` into the model's parameters.

    Args:
        model_params: the model's parameters.
        master_params: their masters.
        flat_master: whether there is one master, a vector.
    """
    with torch.no_grad():
        masters: Iterable[torch.Tensor] = master_params
        if flat_master:
            pieces = torch.split(master_params[0].detach(), [parameter.numel() for parameter in model_params])
            masters = [piece.view(parameter.shape) for piece, parameter in zip(pieces, model_params, strict=True)]
        for parameter, master in zip(model_params, masters, strict=True):
            parameter.copy_(master)


def to_python_float(t: Any) -> float:
    """The value of a tensor of one element, or of anything that can be indexed."""
    return float(t.item()) if hasattr(t, "item") else float(t[0])
