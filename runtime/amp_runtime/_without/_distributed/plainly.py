"""Gradients of gradients through synchronised batch norm, refused."""

from __future__ import annotations

from typing import Any

from amp_runtime._core.left_out import refuse


def normalise_plainly(*_: Any) -> Any:
    """Refuses normalisation that can be differentiated twice.

    Raises:
        LeftOutError: always.
    """
    refuse("the gradient of a gradient through synchronised batch norm")


backward_plainly = normalise_plainly
