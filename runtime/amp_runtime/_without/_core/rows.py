"""No embedding table has its sharded by rows."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

whole_on_main_alone = nullcontext


def table_of(tensor: Any) -> None:
    """The table of which a tensor holds rows."""


def has_rows(tensors: Any) -> bool:
    """Whether one of them holds rows of a table."""
    return False


def any_tables() -> bool:
    """Whether a table was shared out."""
    return False


def mark(tensor: Any, table: None) -> None:
    """Notes that a tensor holds rows of a table."""


def forget_all() -> None:
    """Forgets the tables."""
