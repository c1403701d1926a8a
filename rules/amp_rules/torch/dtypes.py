"""Names of data types."""

from __future__ import annotations

HALF_TYPES = {"torch.half": "float16", "torch.float16": "float16", "torch.bfloat16": "bfloat16"}
"""The half types, by the names that torch has for them."""

FLOAT32_TYPES = frozenset({"torch.float32", "torch.float"})
FLOAT32_TENSORS = frozenset({"torch.FloatTensor", "torch.cuda.FloatTensor"})
HALF_TENSORS = {
    "torch.HalfTensor": "float16",
    "torch.cuda.HalfTensor": "float16",
    "torch.BFloat16Tensor": "bfloat16",
    "torch.cuda.BFloat16Tensor": "bfloat16",
}
"""The classes of tensors of a type that old code asks for, with ``isinstance`` or by the text of ``x.type()``."""

FLOAT64_TYPES = frozenset({"torch.float64", "torch.double", "torch.DoubleTensor", "torch.cuda.DoubleTensor"})

SETS_DEFAULT_TYPE = frozenset({"torch.set_default_dtype", "torch.set_default_tensor_type"})
"""What chooses the type of everything that is made without one."""
