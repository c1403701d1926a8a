"""``apex.contrib.optimizers.fp16_optimizer``."""

from amp_runtime.apex.fp16_utils.fused_fp16_optimizer import FP16_Optimizer as FP16_Optimizer
