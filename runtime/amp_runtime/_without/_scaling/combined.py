"""Gradients lie where torch puts them: ``amp.init(combine_grad=True)`` is refused."""

from __future__ import annotations

from typing import Any

from amp_runtime._core.left_out import refuse


class CombinedGradients:
    """Flat buffers of gradients."""

    def __init__(self, *_: Any) -> None:
        refuse("amp.init(combine_grad=True)")


def advise_merging(optimizer: Any) -> None:
    """Would say whether flat buffers are worth it."""
