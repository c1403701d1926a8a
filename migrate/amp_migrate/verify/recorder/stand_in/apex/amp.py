"""``apex.amp`` at O0."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


def initialize(models: Any, optimizers: Any = None, enabled: bool = True, opt_level: str = "O1", **more: Any) -> Any:
    """Return what was given."""
    return models if optimizers is None else (models, optimizers)


@contextlib.contextmanager
def scale_loss(loss: Any, optimizers: Any, *args: Any, **more: Any) -> Iterator[Any]:
    """Yield the loss."""
    yield loss


@contextlib.contextmanager
def disable_casts() -> Iterator[None]:
    """Do nothing: there are none."""
    yield


def master_params(optimizer: Any) -> Iterator[Any]:
    """Yield the parameters."""
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict(destination: Any = None) -> dict[str, Any]:
    """Return the state of a scale that is 1."""
    return {"loss_scaler0": {"loss_scale": 1.0, "unskipped": 0}}


def load_state_dict(state_dict: Any) -> None:
    """Do nothing."""


def float_function(function: Any) -> Any:
    """Return the function."""
    return function


half_function = bfloat16_function = promote_function = float_function


def register_float_function(module: Any, name: str) -> None:
    """Do nothing."""


register_half_function = register_bfloat16_function = register_promote_function = register_float_function
