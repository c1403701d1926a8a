"""``import apex_C``: many tensors as one vector, and back."""

from amp_runtime.apex.parallel.distributed import flatten as flatten
from amp_runtime.apex.parallel.distributed import unflatten as unflatten

__all__ = ["flatten", "unflatten"]
