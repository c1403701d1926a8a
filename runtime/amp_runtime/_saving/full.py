"""States of whole tensors: what one process would save, of models and optimizers that are sharded over the ranks."""

from __future__ import annotations

from typing import Any

from torch import nn

from amp_runtime._core.context import context
from amp_runtime._core.dtensors import any_sharded, is_sharded, whole
from amp_runtime._core.rows import whole_on_main_alone
from amp_runtime._core.trees import map_tensors, tensors_in
from amp_runtime._saving.bare import bare


def full_state_dict(part: Any) -> Any:
    """The state of a model, an optimizer or an :class:`EMA` for a checkpoint that one process writes.

    The same as ``part.state_dict()`` where nothing is sharded. Of shards it puts the whole tensors together, on the
    CPU of the main process: with the names, numbers and shapes of a model that is not sharded, so that the file loads
    with any number of processes, sharded or not. ``load_state_dict`` of a sharded model or its optimizer takes such a
    state on all ranks, each its own part::

        state = amp.full_state_dict(model)          # on all ranks
        if amp.is_main_process():
            torch.save(state, "model.pt")

    :func:`save_checkpoint` does it by itself. ``model.state_dict()`` of a sharded model gives each rank's part, for
    ``torch.distributed.checkpoint``.

    Args:
        part: what has a ``state_dict``. All ranks call it together.

    Returns:
        The state; for shards, on other ranks than the main process, one without the sharded tensors, which is not to be
        saved.
    """
    with whole_on_main_alone():
        state = bare(part).state_dict() if isinstance(part, nn.Module) else part.state_dict()
    return gathered(state)


def gathered(state: Any) -> Any:
    """A state with whole tensors in the place of shards, on the main process. A collective where there are shards."""
    if not any_sharded(tensors_in(state)):
        return state
    return map_tensors(_gathered, state)


def _gathered(tensor: Any) -> Any:
    if not is_sharded(tensor):
        return tensor
    full = whole(tensor)
    return full.cpu() if context.rank == 0 else None
