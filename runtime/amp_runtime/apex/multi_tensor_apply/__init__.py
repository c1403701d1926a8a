"""``apex.multi_tensor_apply``."""

from amp_runtime.apex.multi_tensor_apply.multi_tensor_apply import MultiTensorApply as MultiTensorApply

multi_tensor_applier = MultiTensorApply(2048 * 32)  # Apex's chunk size, which scripts read and hand on
"""Calls an operation of :mod:`amp_runtime.apex.amp_C` on lists of tensors."""

__all__ = ["MultiTensorApply", "multi_tensor_applier"]
