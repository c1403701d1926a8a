"""Gradients lie where torch puts them: ``amp.init(combine_grad=True)`` is refused."""

from __future__ import annotations

from typing import Any

from amp_runtime._core.left_out import refuse

CombinedGradients = None


def combined_of(*_: Any) -> Any:
    """Refuses flat buffers.

    Raises:
        LeftOutError: always.
    """
    refuse("amp.init(combine_grad=True)")


def advise_merging(optimizer: Any) -> None:
    """Would say whether flat buffers are worth it."""
