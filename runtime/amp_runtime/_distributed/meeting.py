"""How the processes of one attempt find each other in a store that outlives them."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

_TOKEN = "amp/token"
_PAUSE = 0.02  # seconds


def agreed_token(store: Any, rank: int, size: int, timeout: timedelta) -> str:
    """A word that all processes of this attempt get, and none of another one.

    torchrun's agents keep a store over restarts, and what processes that have died left in it looks like what the
    living write. The number of restarts does not tell them apart: each agent counts its own, and one whose processes
    were only stopped, because those of another machine died, counts none.

    Rank 0 writes a word of its own; each other rank answers under it with a word of its own, and is told back what it
    answered. Whoever finds another's word there has read a store of before, and looks again.

    Args:
        store: where all processes read and write.
        rank: the number of this process.
        size: how many processes there are.
        timeout: how long to wait for the others.

    Raises:
        RuntimeError: not all have come in time.
    """
    own = uuid.uuid4().hex
    if rank == 0:
        store.set(_TOKEN, own)
        for other in range(1, size):
            store.wait([_answer(own, other)], timeout)
            store.set(_echo(own, other), store.get(_answer(own, other)))
        return own
    deadline = time.monotonic() + timeout.total_seconds()
    answered = ""
    while time.monotonic() < deadline:
        if store.check([_TOKEN]):
            token = str(store.get(_TOKEN).decode())
            if token != answered:
                store.set(_answer(token, rank), own)
                answered = token
            if store.check([_echo(token, rank)]) and store.get(_echo(token, rank)).decode() == own:
                return token
        time.sleep(_PAUSE)
    raise RuntimeError(f"rank {rank} waited {timeout} for rank 0, which did not join; its output may say why")


def _answer(token: str, rank: int) -> str:
    return f"amp/{token}/answer/{rank}"


def _echo(token: str, rank: int) -> str:
    return f"amp/{token}/echo/{rank}"
