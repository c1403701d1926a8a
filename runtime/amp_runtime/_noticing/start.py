"""Begins and ends all checks of a run."""

from __future__ import annotations

import torch.distributed as dist

from amp_runtime._core.context import context
from amp_runtime._distributed.launch import group_store
from amp_runtime._noticing import parting, scaled_step, waiting
from amp_runtime._noticing.setting import setting

_begun = 0
_looks_at_ranks = False


def begin() -> None:
    """Begins the checks that apply; ``amp.init`` does it, each time."""
    global _begun, _looks_at_ranks
    scaled_step.begin()
    store = group_store() if context.distributed and setting() != "off" and not _looks_at_ranks else None
    if store is not None:
        _looks_at_ranks = True
        # A group of the script's own outlives ``amp.shutdown``, and so does what was left in its store.
        _begun += 1
        own = dist.PrefixStore(f"amp/noticing/{_begun}", store)  # type: ignore[attr-defined]
        parting.begin(own)
        waiting.begin(own, context.rank, context.world_size)


def end() -> None:
    """Ends them; ``amp.shutdown`` does it."""
    global _looks_at_ranks
    _looks_at_ranks = False
    scaled_step.end()
    parting.end()
    waiting.end()
