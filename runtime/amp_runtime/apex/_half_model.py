"""Half weights, for ``amp.initialize`` at O2 and O3 and for scripts that make them with ``fp16_utils``."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def cast_model(model: nn.Module, dtype: torch.dtype, keep_batchnorm_fp32: bool) -> None:
    """Casts floating parameters and buffers in place; the parameters stay the same objects.

    Args:
        model: the model.
        dtype: the new type.
        keep_batchnorm_fp32: leave batch norm with weights as it is. Batch norm without is cast, as in Apex.
    """
    with torch.no_grad():
        for module in model.modules():
            if keep_batchnorm_fp32 and isinstance(module, _BatchNorm) and module.affine:
                continue
            for parameter in module.parameters(recurse=False):
                if parameter.is_floating_point() and parameter.dtype is not dtype:
                    gradient, parameter.grad = parameter.grad, None
                    parameter.data = parameter.data.to(dtype)
                    parameter.grad = None if gradient is None else gradient.to(dtype)
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point():
                    module._buffers[name] = buffer.to(dtype)
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()
