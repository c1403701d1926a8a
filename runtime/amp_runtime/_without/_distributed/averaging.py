"""torch's DistributedDataParallel averages all gradients; none is averaged at the step."""

from __future__ import annotations

from typing import Any

from amp_runtime._core.left_out import refuse

average_gradients: Any = None  # of none


def delayed(parameters: Any) -> list[Any]:
    """The parameters whose gradients are averaged at the step."""
    return []


def follow_models() -> None:
    """Marks new parameters."""


def forget_all() -> None:
    """Forgets the marked ones."""


def delay(*_: Any) -> None:
    """Refuses ``delay_allreduce=True``, and copies of prepared models, whose gradients would be averaged at the step.

    Raises:
        LeftOutError: always.
    """
    refuse("averaging at the step, for delay_allreduce=True or a copy of a model,")
