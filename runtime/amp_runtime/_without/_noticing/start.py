"""The run is not looked at."""

from __future__ import annotations

import os

from amp_runtime._core.left_out import refuse_for_good


def begin() -> None:
    """Refuses the checks where they are asked for.

    Raises:
        LeftOutError: ``AMP_CHECK`` says so.
    """
    text = os.environ.get("AMP_CHECK", "").strip()
    if text not in ("", "off"):
        refuse_for_good(f"AMP_CHECK={text}")


def end() -> None:
    """Ends them."""
