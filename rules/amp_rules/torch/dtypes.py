"""Names of data types."""

from __future__ import annotations

HALF_TYPES = {"torch.half": "float16", "torch.float16": "float16", "torch.bfloat16": "bfloat16"}
"""The half types, by the names that torch has for them."""

FLOAT32_TYPES = frozenset({"torch.float32", "torch.float"})
