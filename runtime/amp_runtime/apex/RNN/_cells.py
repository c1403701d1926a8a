"""What one step of each kind of recurrent layer computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from amp_runtime.apex.RNN.RNNBackend import RNNCell

Weight = torch.Tensor
Bias = torch.Tensor | None


def lstm_cell(
    input: torch.Tensor, hidden: Any, w_ih: Weight, w_hh: Weight, b_ih: Bias = None, b_hh: Bias = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of an LSTM: ``(hidden, cell)`` from the input and the last ones, all ``(batch, size)``."""
    last, cell = hidden
    return _lstm_gates(F.linear(input, w_ih, b_ih) + F.linear(last, w_hh, b_hh), cell)


def gru_cell(
    input: torch.Tensor, hidden: Any, w_ih: Weight, w_hh: Weight, b_ih: Bias = None, b_hh: Bias = None
) -> torch.Tensor:
    """One step of a GRU: the hidden state from the input and the last one, all ``(batch, size)``."""
    reset_i, update_i, new_i = F.linear(input, w_ih, b_ih).chunk(3, 1)
    reset_h, update_h, new_h = F.linear(hidden, w_hh, b_hh).chunk(3, 1)
    update = torch.sigmoid(update_i + update_h)
    new = torch.tanh(new_i + torch.sigmoid(reset_i + reset_h) * new_h)
    result: torch.Tensor = new + update * (hidden - new)
    return result


def relu_cell(
    input: torch.Tensor, hidden: Any, w_ih: Weight, w_hh: Weight, b_ih: Bias = None, b_hh: Bias = None
) -> torch.Tensor:
    """One step of an Elman layer with ReLU."""
    return torch.relu(F.linear(input, w_ih, b_ih) + F.linear(hidden, w_hh, b_hh))


def tanh_cell(
    input: torch.Tensor, hidden: Any, w_ih: Weight, w_hh: Weight, b_ih: Bias = None, b_hh: Bias = None
) -> torch.Tensor:
    """One step of an Elman layer with tanh."""
    return torch.tanh(F.linear(input, w_ih, b_ih) + F.linear(hidden, w_hh, b_hh))


def mLSTMCell(
    input: torch.Tensor,
    hidden: Any,
    w_ih: Weight,
    w_hh: Weight,
    w_mih: Weight,
    w_mhh: Weight,
    b_ih: Bias = None,
    b_hh: Bias = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of a multiplicative LSTM: ``(hidden, cell)``."""
    last, cell = hidden
    product = F.linear(input, w_mih) * F.linear(last, w_mhh)
    return _lstm_gates(F.linear(input, w_ih, b_ih) + F.linear(product, w_hh, b_hh), cell)


class mLSTMRNNCell(RNNCell):
    """A cell of a multiplicative LSTM, with weights ``w_mih`` and ``w_mhh`` besides those of :class:`RNNCell`.

    Args:
        input_size: the size of an input.
        hidden_size: the size of the hidden state.
        bias: have biases.
        output_size: the size of a projection of the hidden state; ``None`` for none.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = False, output_size: int | None = None) -> None:
        super().__init__(4, input_size, hidden_size, mLSTMCell, 2, bias, output_size)
        self.w_mih = nn.Parameter(torch.empty(self.output_size, self.input_size))
        self.w_mhh = nn.Parameter(torch.empty(self.output_size, self.output_size))
        self.reset_parameters()

    def weights(self) -> Sequence[torch.Tensor]:
        """The weights in the order in which the cell takes them."""
        return self.w_ih, self.w_hh, self.w_mih, self.w_mhh

    def new_like(self, new_input_size: int | None = None) -> RNNCell:
        """A new cell of this kind, for inputs of another size where that is given."""
        size = self.input_size if new_input_size is None else new_input_size
        return type(self)(size, self.hidden_size, self.bias, self.output_size)


def _lstm_gates(gates: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ingate, forgetgate, new, outgate = gates.chunk(4, 1)
    state = torch.sigmoid(forgetgate) * cell + torch.sigmoid(ingate) * torch.tanh(new)
    return torch.sigmoid(outgate) * torch.tanh(state), state
