"""``apex.contrib.focal_loss``."""

from amp_runtime.apex.contrib.focal_loss.focal_loss import FocalLoss as FocalLoss
from amp_runtime.apex.contrib.focal_loss.focal_loss import focal_loss as focal_loss

__all__ = ["FocalLoss", "focal_loss"]
