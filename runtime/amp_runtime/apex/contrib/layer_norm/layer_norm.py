"""``apex.contrib.layer_norm.layer_norm``: layer norm over the last dimension."""

from __future__ import annotations

import torch
from torch import nn

from amp_runtime.apex.normalization.fused_layer_norm import fused_layer_norm_affine


class FastLayerNorm(nn.Module):
    """``apex.contrib.layer_norm.FastLayerNorm``: layer norm over the last dimension, of any size.

    Args:
        hidden_size: the size of the last dimension.
        eps: added to the variance.
        memory_efficient: accepted; torch's kernel keeps the input either way.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-5, memory_efficient: bool = False) -> None:
        super().__init__()
        self.epsilon = eps
        self.memory_efficient = memory_efficient
        self.weight = nn.Parameter(torch.empty(hidden_size))
        self.bias = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 1 and the bias to 0."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalizes ``x``, of shape ``(..., hidden_size)``; the result has its type, under autocast that one."""
        return fused_layer_norm_affine(x, self.weight, self.bias, self.weight.shape, self.epsilon)
