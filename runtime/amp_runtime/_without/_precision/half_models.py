"""The levels O2 and O3, refused."""

from __future__ import annotations

from typing import Any

from amp_runtime._core.left_out import refuse


def require_here() -> None:
    """Refuses these levels.

    Raises:
        LeftOutError: always.
    """
    refuse("what O2 and O3 need", "--opt-level O2")


make_half: Any = None  # such a level was refused before
make_compute_half: Any = None
