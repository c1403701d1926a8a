"""No rows are put together."""

from __future__ import annotations

from typing import Any

put_together: Any = None  # of no table
