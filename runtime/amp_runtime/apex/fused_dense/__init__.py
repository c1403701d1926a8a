"""``apex.fused_dense``."""

from amp_runtime.apex.fused_dense.fused_dense import FusedDense as FusedDense
from amp_runtime.apex.fused_dense.fused_dense import FusedDenseGeluDense as FusedDenseGeluDense

__all__ = ["FusedDense", "FusedDenseGeluDense"]
