"""Steps with a closure, refused."""

from __future__ import annotations

from typing import Any

from amp_runtime._core.left_out import refuse


class ClosureStep:
    """One step of an optimizer that calls its closure."""

    def __init__(self, *_: Any) -> None:
        refuse("amp.scaler.step(optimizer, closure)")


step_with_closure: Any = None  # such a step was refused before
