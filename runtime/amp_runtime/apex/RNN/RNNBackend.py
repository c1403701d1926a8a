"""``apex.RNN.RNNBackend``: cells that keep their hidden state, stacked and in both directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Hiddens = list[torch.Tensor]


class RNNCell(nn.Module):
    """A cell that goes on from the hidden state that its last call left.

    Args:
        gate_multiplier: rows of the weights for each hidden unit.
        input_size: the size of an input.
        hidden_size: the size of the hidden state.
        cell: computes new hidden states from ``(input, hidden, *weights, b_ih=, b_hh=)``.
        n_hidden_states: 2 for LSTMs, 1 otherwise.
        bias: have biases.
        output_size: the size of a projection of the hidden state; ``None`` for none.

    Attributes:
        w_ih, w_hh, w_ho, b_ih, b_hh: the parameters; ``w_ho`` only with a projection.
        hidden: the hidden states, ``(batch, size)`` each; ``None`` before the first call.
    """

    def __init__(
        self,
        gate_multiplier: int,
        input_size: int,
        hidden_size: int,
        cell: Callable[..., Any],
        n_hidden_states: int = 2,
        bias: bool = False,
        output_size: int | None = None,
    ) -> None:
        super().__init__()
        self.gate_multiplier = gate_multiplier
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.cell = cell
        self.bias = bias
        self.output_size = hidden_size if output_size is None else output_size
        self.gate_size = gate_multiplier * hidden_size
        self.n_hidden_states = n_hidden_states
        self.w_ih = nn.Parameter(torch.empty(self.gate_size, input_size))
        self.w_hh = nn.Parameter(torch.empty(self.gate_size, self.output_size))
        if self.output_size != hidden_size:
            self.w_ho = nn.Parameter(torch.empty(self.output_size, hidden_size))
        self.b_ih = nn.Parameter(torch.empty(self.gate_size)) if bias else None
        self.b_hh = nn.Parameter(torch.empty(self.gate_size)) if bias else None
        self.hidden: list[Any] = [None] * n_hidden_states
        self.reset_parameters()

    def weights(self) -> Sequence[torch.Tensor]:
        """The weights in the order in which the cell takes them."""
        return self.w_ih, self.w_hh

    def new_like(self, new_input_size: int | None = None) -> RNNCell:
        """A new cell of this kind, for inputs of another size where that is given."""
        size = self.input_size if new_input_size is None else new_input_size
        return type(self)(
            self.gate_multiplier, size, self.hidden_size, self.cell, self.n_hidden_states, self.bias, self.output_size
        )

    def reset_parameters(self, gain: float = 1) -> None:
        """Draws the parameters uniformly, within one over the root of the hidden size."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def init_hidden(self, bsz: int) -> None:
        """Sets hidden states to 0 that are missing or of another batch size."""
        for index, hidden in enumerate(self.hidden):
            if hidden is None or hidden.shape[0] != bsz:
                size = self.output_size if index == 0 else self.hidden_size
                self.hidden[index] = self.w_ih.new_zeros(bsz, size)

    def reset_hidden(self, bsz: int) -> None:
        """Sets all hidden states to 0."""
        self.hidden = [None] * self.n_hidden_states
        self.init_hidden(bsz)

    def detach_hidden(self) -> None:
        """Detaches the hidden states from the graph.

        Raises:
            RuntimeError: there are none yet.
        """
        if any(hidden is None for hidden in self.hidden):
            raise RuntimeError("detach_hidden found no hidden state; call the module or init_hidden before")
        self.hidden = [hidden.detach() for hidden in self.hidden]

    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """One step: the new hidden states from an input ``(batch, input_size)``."""
        self.init_hidden(input.shape[0])
        hidden = self.hidden[0] if self.n_hidden_states == 1 else self.hidden
        new = self.cell(input, hidden, *self.weights(), b_ih=self.b_ih, b_hh=self.b_hh)
        self.hidden = list(new) if self.n_hidden_states > 1 else [new]
        if self.output_size != self.hidden_size:
            self.hidden[0] = F.linear(self.hidden[0], self.w_ho)
        return tuple(self.hidden)


class stackedRNN(nn.Module):
    """Cells on top of each other.

    Args:
        inputRNN: the lowest cell, or all of them.
        num_layers: how many.
        dropout: accepted; not applied, as in Apex.

    Raises:
        ValueError: a list that has not ``num_layers`` cells.
    """

    def __init__(self, inputRNN: RNNCell | list[RNNCell], num_layers: int = 1, dropout: float = 0) -> None:
        super().__init__()
        self.dropout = dropout
        if isinstance(inputRNN, list):
            cells = inputRNN
        else:
            cells = [inputRNN] + [inputRNN.new_like(inputRNN.output_size) for _ in range(num_layers - 1)]
        if len(cells) != num_layers:
            raise ValueError(f"stackedRNN got {len(cells)} cells; allowed: num_layers={num_layers}")
        self.nLayers = num_layers
        self.rnns = nn.ModuleList(cells)

    def forward(
        self, input: torch.Tensor, collect_hidden: bool = False, reverse: bool = False
    ) -> tuple[torch.Tensor, list[Any]]:
        """Goes through the steps of ``input``, ``(steps, batch, input_size)``.

        Args:
            input: the inputs.
            collect_hidden: return the hidden states of every step.
            reverse: go from the last step to the first.

        Returns:
            The outputs ``(steps, batch, output_size)``, and for each hidden state the last ``(layers, batch, size)``
            or, collected, a list of those of every step.
        """
        order = range(input.shape[0] - 1, -1, -1) if reverse else range(input.shape[0])
        outputs: Hiddens = []
        collected: list[list[tuple[torch.Tensor, ...]]] = []
        for number in order:
            below = input[number]
            states = []
            for cell in self.rnns:
                states.append(cell(below))
                below = states[-1][0]
            outputs.append(below)
            collected.append(states)
        if reverse:
            outputs.reverse()
            collected.reverse()
        last = collected[0] if reverse else collected[-1]
        steps = collected if collect_hidden else [last]
        hiddens = [[torch.stack([layer[kind] for layer in step]) for step in steps] for kind in range(len(last[0]))]
        return torch.stack(outputs), hiddens if collect_hidden else [each[0] for each in hiddens]

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        for cell in self._cells():
            cell.reset_parameters()

    def init_hidden(self, bsz: int) -> None:
        """Sets hidden states to 0 that are missing or of another batch size."""
        for cell in self._cells():
            cell.init_hidden(bsz)

    def detach_hidden(self) -> None:
        """Detaches the hidden states from the graph."""
        for cell in self._cells():
            cell.detach_hidden()

    def reset_hidden(self, bsz: int) -> None:
        """Sets all hidden states to 0."""
        for cell in self._cells():
            cell.reset_hidden(bsz)

    def _cells(self) -> list[Any]:
        return list(self.rnns)


class bidirectionalRNN(nn.Module):
    """Two stacks, one from the last step to the first.

    Args:
        inputRNN: the lowest cell of the first stack.
        num_layers: the cells of each.
        dropout: accepted; not applied, as in Apex.
    """

    def __init__(self, inputRNN: RNNCell, num_layers: int = 1, dropout: float = 0) -> None:
        super().__init__()
        self.dropout = dropout
        self.fwd = stackedRNN(inputRNN, num_layers=num_layers, dropout=dropout)
        self.bckwrd = stackedRNN(inputRNN.new_like(), num_layers=num_layers, dropout=dropout)
        self.rnns = nn.ModuleList([self.fwd, self.bckwrd])

    def forward(self, input: torch.Tensor, collect_hidden: bool = False) -> tuple[torch.Tensor, tuple[Any, ...]]:
        """Outputs and hidden states of both stacks, side by side in the last dimension."""
        forth, forth_hidden = self.fwd(input, collect_hidden=collect_hidden)
        back, back_hidden = self.bckwrd(input, reverse=True, collect_hidden=collect_hidden)
        pairs = zip(forth_hidden, back_hidden, strict=True)
        if collect_hidden:
            beside: tuple[Any, ...] = tuple([torch.cat(step, -1) for step in zip(*pair, strict=True)] for pair in pairs)
        else:
            beside = tuple(torch.cat(pair, -1) for pair in pairs)
        return torch.cat([forth, back], -1), beside

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        self.fwd.reset_parameters()
        self.bckwrd.reset_parameters()

    def init_hidden(self, bsz: int) -> None:
        """Sets hidden states to 0 that are missing or of another batch size."""
        self.fwd.init_hidden(bsz)
        self.bckwrd.init_hidden(bsz)

    def detach_hidden(self) -> None:
        """Detaches the hidden states from the graph."""
        self.fwd.detach_hidden()
        self.bckwrd.detach_hidden()

    def reset_hidden(self, bsz: int) -> None:
        """Sets all hidden states to 0."""
        self.fwd.reset_hidden(bsz)
        self.bckwrd.reset_hidden(bsz)
