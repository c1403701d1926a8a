"""Backward passes that still wait for gradients, and what ends them.

torch's DistributedDataParallel sends no gradient behind one that does not come: a layer that took no part in a step
keeps the others waiting, and the next forward pass raises an error. Where gradients are needed, nothing more can come.
"""

from __future__ import annotations

import weakref
from typing import Protocol

import torch


class OpenPass(Protocol):
    """What holds a model whose backward pass may be incomplete.

    Attributes:
        began_in: torch's number of the call of ``backward`` in which the pass began.
    """

    began_in: int

    def end_pass(self) -> None:
        """Completes a pass that has begun, with zeros for what did not come. A collective where it was incomplete."""


# In the order in which they were made, which is the same on all ranks.
_models: list[weakref.ref[OpenPass]] = []


def watch(model: OpenPass) -> None:
    """Has the passes of a model ended by :func:`end_passes`."""
    _models[:] = [weakref.ref(known) for known in [*_living(), model]]


def end_passes() -> None:
    """Completes the backward passes that have begun, of all models: before a step, or before ranks exchange anything.

    A generator's pass goes through the discriminator, whose gradients the script clears before it uses that again.
    """
    if torch._C._current_graph_task_id() >= 0:
        return  # a hook, or a backward pass of the script's own that exchanges something: more gradients are to come
    for model in _living():
        model.end_pass()


def end_passes_before(call: int) -> None:
    """Completes those that began in an earlier call of ``backward``, from within this one.

    A rank that left nothing out waits there for the others, and comes to no later one before.
    """
    for model in _living():
        if model.began_in < call:
            model.end_pass()


def _living() -> list[OpenPass]:
    return [model for known in _models if (model := known()) is not None]
