"""How gradients travel: bucket sizes, in which type, and when they are divided by the number of processes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from amp_runtime._core.context import HALF_DTYPES


@dataclass(frozen=True)
class Exchange:
    """The options of Apex's DistributedDataParallel that torch has in no other form.

    Attributes:
        message_size: elements a bucket; ``None`` is the default of what sends it.
        predivide: gradients are divided by this before the sum, and by the rest of the world size after it; ``None``
            leaves the division to what sends it.
        always_fp32: half gradients are summed in float32.
        average: whether the sum is divided by the world size; the division before the sum happens in any case.
    """

    message_size: int | None = None
    predivide: float | None = None
    always_fp32: bool = False
    average: bool = True

    @property
    def plain(self) -> bool:
        """Whether torch's own averaging does it."""
        return self.predivide is None and not self.always_fp32 and self.average

    def widen(self, flat: torch.Tensor) -> torch.Tensor:
        """``flat`` as it is summed."""
        return flat.float() if self.always_fp32 and flat.dtype in HALF_DTYPES else flat

    def factors(self, world_size: int) -> tuple[float, float]:
        """What gradients are divided by before the sum, and multiplied by after it."""
        divisor = float(world_size) if self.predivide is None and self.average else self.predivide or 1.0
        return divisor, divisor / world_size if self.average else 1.0


PLAIN = Exchange()
"""Means over the processes, as torch computes them."""


def real_view(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or where it is complex its real and imaginary parts, which share its memory: gloo sums no others."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers as a vector of bytes, of the same memory where they lie in a row: every group carries these.

    Neither NCCL nor gloo has bools, complex numbers or int16.
    """
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
