"""``amp.scaler.locate_overflow``, refused."""

from __future__ import annotations

from typing import Any

from amp_runtime._core.left_out import refuse


def replayed(*_: Any) -> Any:
    """Refuses to make a step once more.

    Raises:
        LeftOutError: always.
    """
    refuse("amp.scaler.locate_overflow")
