"""``apex.mlp.mlp``: several linear layers with one activation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from amp_runtime.apex._layer_casts import cast_if_autocast, without_autocast

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda hidden: hidden,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
}


def mlp_function(bias: int, activation: int, *args: torch.Tensor) -> torch.Tensor:
    """Applies linear layers, each followed by the activation.

    Args:
        bias: whether there are biases.
        activation: 0 for none, 1 for ReLU, 2 for sigmoid.
        args: the input ``(batch, in)``, then all weights ``(out, in)``, then all biases ``(out,)``.

    Returns:
        A tensor ``(batch, out)``; under autocast in its type.
    """
    hidden, *parameters = cast_if_autocast(*args)
    count = len(parameters) // 2 if bias else len(parameters)
    biases = parameters[count:] if bias else [None] * count
    activate = list(_ACTIVATIONS.values())[activation]
    with without_autocast(hidden):
        for weight, shift in zip(parameters[:count], biases, strict=True):
            hidden = activate(F.linear(hidden, weight, shift))
    output: torch.Tensor = hidden
    return output


class MlpFunction(torch.autograd.Function):
    """:func:`mlp_function` as the function that scripts wrap in one of their own, calling its two static methods.

    Its gradients cannot be differentiated again.
    """

    @staticmethod
    def forward(ctx: Any, bias: int, activation: int, *args: torch.Tensor) -> torch.Tensor:
        """Takes the arguments of :func:`mlp_function`."""
        ctx.save_for_backward(*args)
        ctx.kind = bias, activation
        return mlp_function(bias, activation, *args)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        """Returns a gradient for each tensor, and none for the two numbers."""
        inputs = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in ctx.saved_tensors]
        with torch.enable_grad():
            output = mlp_function(*ctx.kind, *inputs)
        return None, None, *torch.autograd.grad(output, inputs, grad_output.to(output.dtype))


class MLP(nn.Module):
    """``apex.mlp.MLP``: linear layers, with the activation after the last one too.

    Args:
        mlp_sizes: the sizes of input, hidden layers and output.
        bias: have biases.
        activation: ``relu``, ``none`` or ``sigmoid``.

    Attributes:
        weight_i, bias_i: the parameters of layer ``i``, of shape ``(out, in)`` and ``(out,)``.

    Raises:
        TypeError: another activation.
    """

    def __init__(self, mlp_sizes: Sequence[int], bias: bool = True, activation: str = "relu") -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise TypeError(f"MLP got activation={activation!r}; allowed: 'none', 'relu', 'sigmoid'")
        self.num_layers = len(mlp_sizes) - 1
        self.mlp_sizes = list(mlp_sizes)
        self.bias = int(bias)
        self.activation = list(_ACTIVATIONS).index(activation)
        for index in range(self.num_layers):
            weight = nn.Parameter(torch.empty(mlp_sizes[index + 1], mlp_sizes[index]))
            setattr(self, f"weight_{index}", weight)
            if bias:
                setattr(self, f"bias_{index}", nn.Parameter(torch.empty(mlp_sizes[index + 1])))
        self.reset_parameters()

    @property
    def weights(self) -> list[nn.Parameter]:
        """The weights, from the first layer on."""
        return [getattr(self, f"weight_{index}") for index in range(self.num_layers)]

    @property
    def biases(self) -> list[nn.Parameter]:
        """The biases, from the first layer on; empty without."""
        return [getattr(self, f"bias_{index}") for index in range(self.num_layers)] if self.bias else []

    def reset_parameters(self) -> None:
        """Draws all parameters from normal distributions."""
        for weight in self.weights:
            nn.init.normal_(weight, 0.0, math.sqrt(2.0 / (weight.shape[0] + weight.shape[1])))
        for bias in self.biases:
            nn.init.normal_(bias, 0.0, math.sqrt(1.0 / bias.shape[0]))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Maps ``(batch, mlp_sizes[0])`` to ``(batch, mlp_sizes[-1])``."""
        return mlp_function(self.bias, self.activation, input, *self.weights, *self.biases)

    def extra_repr(self) -> str:
        """The options, for ``repr``."""
        return f"MLP sizes: {self.mlp_sizes}, Bias={self.bias}, activation={self.activation}"
