"""``apex.optimizers.fused_novograd``."""

from amp_runtime.optim.fused_novograd import FusedNovoGrad as FusedNovoGrad

__all__ = ["FusedNovoGrad"]
