"""``apex.contrib.xentropy``."""

from amp_runtime.apex.contrib.xentropy.softmax_xentropy import SoftmaxCrossEntropyLoss as SoftmaxCrossEntropyLoss

__all__ = ["SoftmaxCrossEntropyLoss"]
