"""``apex.contrib.optimizers``: the optimizers of Apex before October 2019, whose step takes gradients."""

from amp_runtime.apex.contrib.optimizers.fp16_optimizer import FP16_Optimizer as FP16_Optimizer
from amp_runtime.apex.contrib.optimizers.fused_adam import FusedAdam as FusedAdam
from amp_runtime.apex.contrib.optimizers.fused_sgd import FusedSGD as FusedSGD

__all__ = ["FP16_Optimizer", "FusedAdam", "FusedSGD"]
