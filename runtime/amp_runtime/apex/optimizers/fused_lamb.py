"""``apex.optimizers.fused_lamb``."""

from amp_runtime.optim.fused_lamb import FusedLAMB as FusedLAMB

__all__ = ["FusedLAMB"]
