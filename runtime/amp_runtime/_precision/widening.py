"""Types for what is counted and summed up."""

from __future__ import annotations

import torch

from amp_runtime._core.context import HALF_DTYPES, context


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """float32 in place of a half type at O1 to O3; any other type, and any without the runtime at work, as it is.

    For what a model counts, numbers or sums up: ``x.new_zeros(n, dtype=amp.at_least_float32(x.dtype))``. Under
    autocast ``x`` is half, and in bfloat16 256 + 1 is 256: a counter stands still, positions beyond are alike.
    A script that shares the model, makes it half itself and never calls ``amp.init`` keeps one type throughout.

    Args:
        dtype: as in ``x.dtype``.
    """
    return torch.float32 if context.mixed and dtype in HALF_DTYPES else dtype
