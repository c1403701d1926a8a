"""``apex.fused_dense.fused_dense``: linear layers whose bias and GELU torch fuses where it can."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from amp_runtime.apex._layer_casts import cast_if_autocast, without_autocast


class FusedDense(nn.Module):
    """``apex.fused_dense.FusedDense``: a linear layer.

    Its parameters begin as those of ``torch.nn.Linear``; Apex leaves them uninitialised.

    Args:
        in_features: the size of an input.
        out_features: the size of an output.
        bias: have a bias.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = _weight(out_features, in_features)
        self.bias = _bias(out_features, in_features) if bias else None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Maps ``(..., in_features)`` to ``(..., out_features)``."""
        cast, weight, bias = cast_if_autocast(input, self.weight, self.bias)
        with without_autocast(cast):
            return F.linear(cast, weight, bias)


class FusedDenseGeluDense(nn.Module):
    """``apex.fused_dense.FusedDenseGeluDense``: linear, GELU (tanh approximation, as cuBLASLt computes it), linear.

    Its parameters begin as those of ``torch.nn.Linear``; Apex leaves them uninitialised.

    Args:
        in_features: the size of an input.
        intermediate_features: the size between the layers.
        out_features: the size of an output.
        bias: must be true.

    Raises:
        ValueError: ``bias`` is false.
    """

    def __init__(self, in_features: int, intermediate_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        if not bias:
            raise ValueError(f"FusedDenseGeluDense got bias={bias!r}; allowed: True")
        self.in_features = in_features
        self.intermediate_features = intermediate_features
        self.out_features = out_features
        self.weight1 = _weight(intermediate_features, in_features)
        self.bias1 = _bias(intermediate_features, in_features)
        self.weight2 = _weight(out_features, intermediate_features)
        self.bias2 = _bias(out_features, intermediate_features)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Maps ``(..., in_features)`` to ``(..., out_features)``."""
        cast, *parameters = cast_if_autocast(input, self.weight1, self.bias1, self.weight2, self.bias2)
        with without_autocast(cast):
            hidden = F.gelu(F.linear(cast, parameters[0], parameters[1]), approximate="tanh")
            return F.linear(hidden, parameters[2], parameters[3])


def _weight(rows: int, columns: int) -> nn.Parameter:
    weight = nn.Parameter(torch.empty(rows, columns))
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    return weight


def _bias(size: int, inputs: int) -> nn.Parameter:
    bound = 1 / math.sqrt(inputs) if inputs else 0.0
    return nn.Parameter(torch.empty(size).uniform_(-bound, bound))
