"""``apex.optimizers.fused_sgd``."""

from amp_runtime.optim.fused_sgd import FusedSGD as FusedSGD

__all__ = ["FusedSGD"]
