"""``apex.contrib.group_norm``."""

from amp_runtime.apex.contrib.group_norm.group_norm import GroupNorm as GroupNorm

__all__ = ["GroupNorm"]
