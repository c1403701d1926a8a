"""What Apex does at O1, refused."""

from __future__ import annotations

from typing import Any

from amp_runtime._core.left_out import refuse


def follow(*_: Any) -> None:
    """Refuses Apex's tables.

    Raises:
        LeftOutError: always.
    """
    refuse("cast_policy='apex'")
