"""``apex.RNN.models``: functions that build stacked, possibly bidirectional recurrent layers.

All take ``(input_size, hidden_size, num_layers, bias=True, batch_first=False, dropout=0, bidirectional=False,
output_size=None)``. Inputs are ``(steps, batch, input_size)``: ``batch_first`` and ``dropout`` are accepted and change
nothing, as in Apex. ``output_size`` projects the hidden state. The result is a module whose forward returns the outputs
``(steps, batch, output_size)`` and a list of the last hidden states, each ``(layers, batch, size)``.
"""

from __future__ import annotations

from amp_runtime.apex.RNN._cells import gru_cell, lstm_cell, mLSTMRNNCell, relu_cell, tanh_cell
from amp_runtime.apex.RNN.RNNBackend import RNNCell, bidirectionalRNN, stackedRNN


def _stacked(
    inputRNN: RNNCell, num_layers: int, bidirectional: bool = False, dropout: float = 0
) -> bidirectionalRNN | stackedRNN:
    """Stacks ``num_layers`` cells like ``inputRNN``, in one or both directions."""
    return (bidirectionalRNN if bidirectional else stackedRNN)(inputRNN, num_layers, dropout=dropout)


def LSTM(
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0,
    bidirectional: bool = False,
    output_size: int | None = None,
) -> bidirectionalRNN | stackedRNN:
    """LSTM layers; arguments and result as said above."""
    cell = RNNCell(4, input_size, hidden_size, lstm_cell, 2, bias, output_size)
    return _stacked(cell, num_layers, bidirectional, dropout)


def GRU(
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0,
    bidirectional: bool = False,
    output_size: int | None = None,
) -> bidirectionalRNN | stackedRNN:
    """GRU layers; arguments and result as said above."""
    cell = RNNCell(3, input_size, hidden_size, gru_cell, 1, bias, output_size)
    return _stacked(cell, num_layers, bidirectional, dropout)


def ReLU(
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0,
    bidirectional: bool = False,
    output_size: int | None = None,
) -> bidirectionalRNN | stackedRNN:
    """Elman layers with ReLU; arguments and result as said above."""
    cell = RNNCell(1, input_size, hidden_size, relu_cell, 1, bias, output_size)
    return _stacked(cell, num_layers, bidirectional, dropout)


def Tanh(
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0,
    bidirectional: bool = False,
    output_size: int | None = None,
) -> bidirectionalRNN | stackedRNN:
    """Elman layers with tanh; arguments and result as said above."""
    cell = RNNCell(1, input_size, hidden_size, tanh_cell, 1, bias, output_size)
    return _stacked(cell, num_layers, bidirectional, dropout)


def mLSTM(
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0,
    bidirectional: bool = False,
    output_size: int | None = None,
) -> bidirectionalRNN | stackedRNN:
    """Multiplicative LSTM layers (https://arxiv.org/abs/1609.07959); arguments and result as said above."""
    cell = mLSTMRNNCell(input_size, hidden_size, bias=bias, output_size=output_size)
    return _stacked(cell, num_layers, bidirectional, dropout)
