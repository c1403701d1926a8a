"""``apex.optimizers.fused_adagrad``."""

from amp_runtime.optim.fused_adagrad import FusedAdagrad as FusedAdagrad

__all__ = ["FusedAdagrad"]
