"""Loaders of ranks that end at different times, refused."""

from __future__ import annotations

from typing import Any

from amp_runtime._core.left_out import refuse


class Rounds:
    """The batches of ranks that agree on each."""

    def __init__(self, *_: Any) -> None:
        refuse("amp.prepare_loader with sharded=True or uneven='join'")
