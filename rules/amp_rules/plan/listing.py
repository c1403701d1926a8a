"""Several things within a sentence."""

from __future__ import annotations

from collections.abc import Sequence


def listed(items: Sequence[str], most: int | None = None, more: str = "more") -> str:
    """``a, b and c``; of many the first ``most``, and how many ``more`` there are."""
    named = [*items[:most]]
    if len(named) < len(items):
        named.append(f"{len(items) - len(named)} {more}")
    return " and ".join(filter(None, [", ".join(named[:-1]), *named[-1:]]))
