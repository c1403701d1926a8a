"""The one place for what both commands can find again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder for what can be found again: below ``XDG_CACHE_HOME``, or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification has what is not absolute ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "amp-migrate"
