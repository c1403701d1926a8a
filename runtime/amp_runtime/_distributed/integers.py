"""Numbers in environment variables."""

from __future__ import annotations

import os


def whole_number(name: str, default: str = "") -> int | None:
    """The number that a variable holds; that of ``default`` where it is not set, ``None`` where it is no number."""
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return None
