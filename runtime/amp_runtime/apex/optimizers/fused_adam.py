"""``apex.optimizers.fused_adam``."""

from amp_runtime.optim.fused_adam import FusedAdam as FusedAdam

__all__ = ["FusedAdam"]
