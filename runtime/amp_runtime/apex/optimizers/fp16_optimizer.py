"""``apex.optimizers.fp16_optimizer``, as until October 2019."""

from amp_runtime.apex.fp16_utils.fused_fp16_optimizer import FP16_Optimizer as FP16_Optimizer
