"""``apex.normalization``: layer norm and RMS norm through torch's kernels."""

from __future__ import annotations

from amp_runtime.apex.normalization.fused_layer_norm import FusedLayerNorm as FusedLayerNorm
from amp_runtime.apex.normalization.fused_layer_norm import FusedRMSNorm as FusedRMSNorm
from amp_runtime.apex.normalization.fused_layer_norm import MixedFusedLayerNorm as MixedFusedLayerNorm
from amp_runtime.apex.normalization.fused_layer_norm import MixedFusedRMSNorm as MixedFusedRMSNorm

__all__ = ["FusedLayerNorm", "FusedRMSNorm", "MixedFusedLayerNorm", "MixedFusedRMSNorm"]
