"""Ranks whose data has ended before the others': they shadow them, and what they compute counts for nothing.

With ``prepare_loader(uneven="join")`` such a rank gets a copy of its first batch and runs the script's own loop on it,
so that every collective of the loop, of whatever kind, finds all ranks. Its loss weighs nothing, and the losses of the
others weigh so much more that the mean over the processes is the mean over those which have data.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from amp_runtime._core.context import context


@dataclass
class Round:
    """What the ranks agreed on when they fetched their batches.

    Attributes:
        owner: the iterator that gave the batch; once it is gone, its loop has ended and the round with it.
        own_data: whether this rank's batch is its own.
        ranks_with_data: how many ranks have one.
    """

    owner: weakref.ref[Any]
    own_data: bool
    ranks_with_data: int


_round: Round | None = None


def begin_round(latest: Round | None) -> None:
    """Sets the round of the batch that is handed out now; ``None`` where all ranks have data."""
    global _round
    _round = latest


def current_round() -> Round | None:
    """The round in force, or ``None`` while no rank shadows the others."""
    global _round
    if _round is not None and _round.owner() is None:
        _round = None
    return _round


def shadowing() -> bool:
    """Whether this rank has no data left and repeats a batch for the sake of the others.

    Only ever true in a loop over ``amp.prepare_loader(loader, uneven="join")``. Losses that go through
    ``amp.scaler.scale``, synchronised batch norm and ``amp.reduce_mean`` and its like take care of it themselves;
    counts that a script keeps by hand may ask.
    """
    latest = current_round()
    return latest is not None and not latest.own_data


def weight() -> float:
    """What this rank's loss counts: 0 if it is shadowing, and ``world_size / ranks_with_data`` on the others."""
    latest = current_round()
    if latest is None:
        return 1.0
    return context.world_size / latest.ranks_with_data if latest.own_data else 0.0


def weigh(outputs: Any) -> Any:
    """Multiplies a loss by this rank's weight; the same object where all ranks have data.

    Args:
        outputs: a tensor, or an iterable of them.
    """
    return outputs if current_round() is None else _multiply(outputs, weight())


def _multiply(outputs: Any, factor: float) -> Any:
    if isinstance(outputs, torch.Tensor):
        return outputs * factor
    if isinstance(outputs, (list, tuple)):
        return type(outputs)(_multiply(output, factor) for output in outputs)
    if isinstance(outputs, Iterable) and not isinstance(outputs, (str, bytes)):
        return [_multiply(output, factor) for output in outputs]
    return outputs
