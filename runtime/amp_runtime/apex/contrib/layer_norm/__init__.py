"""``apex.contrib.layer_norm``."""

from amp_runtime.apex.contrib.layer_norm.layer_norm import FastLayerNorm as FastLayerNorm

__all__ = ["FastLayerNorm"]
