"""``torch.utils.checkpoint`` under a mode: what backward computes again is cast as it was in forward.

Checkpointing begins the region's autocast again before it recomputes, but knows nothing of the mode over it. A
softmax that was float32 in forward would be half then, which torch reports as different metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]

_undo: list[Callable[[], None]] = []


def follow(bind: Callable[[Function], Function]) -> None:
    """Has checkpointed functions bound with ``bind`` from now on. A second call does nothing.

    Both of torch's implementations are changed where ``checkpoint`` looks them up, so that it holds as well for
    a ``checkpoint`` that was imported by name.
    """
    if _undo:
        return
    import torch.utils.checkpoint as checkpointing  # not for every script: in torch 2.4 it imports sympy

    _wrap(checkpointing, "_checkpoint_without_reentrant_generator", bind, position=0)
    _wrap(checkpointing.CheckpointFunction, "forward", bind, position=1)


def leave() -> None:
    """Gives torch its own functions back."""
    while _undo:
        _undo.pop()()


def _wrap(owner: Any, name: str, bind: Callable[[Function], Function], position: int) -> None:
    held = vars(owner).get(name)
    if held is None:  # a private name of torch, which another version may not have
        return
    function = getattr(owner, name)

    def bound(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= position:
            return function(*args, **kwargs)
        before, checkpointed, after = args[:position], args[position], args[position + 1 :]
        return function(*before, bind(checkpointed), *after, **kwargs)

    setattr(owner, name, staticmethod(bound) if isinstance(held, staticmethod) else bound)
    _undo.append(lambda: setattr(owner, name, held))
