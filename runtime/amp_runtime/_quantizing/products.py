"""Products of int8 matrices on the CPU, exact on processors where those of torch are not."""

from __future__ import annotations

import warnings
from functools import cache

import torch

_LARGEST = 127
_EXACT_IN_FLOAT32 = 512
"""How many products of two 8-bit numbers a float32 sums without rounding: 255 * 128 * 512 < 2^24."""

_library: torch.library.Library | None = None
"""Holds the kernel that took the place of torch's: it goes with this object."""


@cache
def mend() -> None:
    """Gives ``torch._int_mm`` an exact kernel for the CPU where the one of torch is not exact. One warning says so.

    Without VNNI oneDNN adds pairs of products in 16 bits, where they saturate:
    https://uxlfoundation.github.io/oneDNN/dev_guide_int8_computations.html. The kernel is that of the whole process.
    """
    global _library
    if _is_exact():
        return
    _library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is a kernel already
        _library.impl("_int_mm", _product, "CPU")  # type: ignore[no-untyped-call]
        _library.impl("_int_mm.out", _product_into, "CPU")  # type: ignore[no-untyped-call]
    warnings.warn(
        "this processor has no exact int8 products (no VNNI), so torch's overflow; products of int8 layers are "
        "computed in float32 here, which is exact and slower",
        stacklevel=2,
    )


def _is_exact() -> bool:
    """Tries the largest numbers: nothing tells what oneDNN takes, and an environment variable can take it away."""
    ones = torch.full((16, 64), _LARGEST, dtype=torch.int8)
    try:
        found = torch._int_mm(ones, ones.t())
    except RuntimeError:  # a build without the operator: then nothing calls it
        return True
    return bool((found == _LARGEST * _LARGEST * 64).all())


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product of two int8 matrices of shapes (m, k) and (k, n), in int32."""
    total = torch.zeros(left.shape[0], right.shape[1], dtype=torch.int32)
    with torch.autocast("cpu", enabled=False):
        parts = zip(torch.split(left, _EXACT_IN_FLOAT32, 1), torch.split(right, _EXACT_IN_FLOAT32, 0), strict=True)
        for a, b in parts:
            total += torch.mm(a.float(), b.float()).to(torch.int32)
    return total


def _product_into(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return out.resize_(left.shape[0], right.shape[1]).copy_(_product(left, right))
