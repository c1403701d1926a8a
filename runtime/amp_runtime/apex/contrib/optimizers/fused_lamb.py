"""``apex.contrib.optimizers.fused_lamb`` (https://arxiv.org/abs/1904.00962)."""

from amp_runtime.optim.fused_lamb import FusedLAMB as FusedLAMB

__all__ = ["FusedLAMB"]
