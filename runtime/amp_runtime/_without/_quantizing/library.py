"""No model is made int8."""

from __future__ import annotations

from amp_runtime._core.left_out import refuse


def check(kind: str) -> None:
    """Refuses int8.

    Raises:
        LeftOutError: always.
    """
    refuse("int8, for quantize=,")
