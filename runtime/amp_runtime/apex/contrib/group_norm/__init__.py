"""``apex.contrib.group_norm``."""

from amp_runtime.apex.contrib.group_norm.group_norm import GroupNorm as GroupNorm
from amp_runtime.apex.contrib.group_norm.group_norm import torch_group_norm as torch_group_norm

__all__ = ["GroupNorm", "torch_group_norm"]
