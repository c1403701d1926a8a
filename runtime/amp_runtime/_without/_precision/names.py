"""No script gives names of operations: ``custom_white_list`` and ``custom_black_list`` are refused."""

from __future__ import annotations

from typing import Any

from amp_runtime._core.left_out import refuse


def operation(*_: Any) -> Any:
    """Refuses a name.

    Raises:
        LeftOutError: always.
    """
    refuse("custom_white_list and custom_black_list")


def operations(white: Any, black: Any, caller: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names of two lists, which are empty.

    Raises:
        LeftOutError: one is not.
    """
    if white or black:
        operation()
    return frozenset(), frozenset()
