"""``apex.optimizers.fused_mixed_precision_lamb``."""

from amp_runtime.optim.fused_mixed_precision_lamb import FusedMixedPrecisionLamb as FusedMixedPrecisionLamb

__all__ = ["FusedMixedPrecisionLamb"]
