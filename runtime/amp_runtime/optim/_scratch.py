"""Memory for intermediate results, kept between batches."""

from __future__ import annotations

import torch

from amp_runtime.optim._fused import is_plain, laid_out_alike

LARGEST = 1 << 18
"""Elements that are kept for each purpose."""


class Scratch:
    """Lends tensors whose contents do not matter.

    On the CPU fresh memory costs a page fault for every 4 kB, more than a small batch's arithmetic. Other devices
    have an allocator that keeps memory itself.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[torch.dtype, int], torch.Tensor] = {}

    def like(self, tensors: list[torch.Tensor], purpose: int) -> list[torch.Tensor]:
        """Tensors with the sizes, strides, type and device of these, until the next call for this purpose.

        Args:
            tensors: of one device and type.
            purpose: a number; tensors for another one do not share memory with these.
        """
        total = sum(tensor.numel() for tensor in tensors)
        ordinary = all(is_plain(tensor) and laid_out_alike(tensor) for tensor in tensors)
        if tensors[0].device.type != "cpu" or total > LARGEST or not ordinary:
            return [torch.empty_like(tensor) for tensor in tensors]
        key = tensors[0].dtype, purpose
        kept = self._kept.get(key)
        if kept is None or kept.numel() < total:
            kept = self._kept[key] = torch.empty(total, dtype=tensors[0].dtype)
        lent, start = [], 0
        for tensor in tensors:
            lent.append(kept.as_strided(tensor.shape, tensor.stride(), start))
            start += tensor.numel()
        return lent

    def copy(self, tensors: list[torch.Tensor], purpose: int) -> list[torch.Tensor]:
        """Copies of tensors of one device and type, in the memory of :meth:`like`."""
        lent = self.like(tensors, purpose)
        copy_into(lent, tensors)
        return lent


def copy_into(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copies tensor by tensor into ``targets``; at once where they are plain, because shards cannot be."""
    if all(is_plain(tensor) for tensor in targets):
        torch._foreach_copy_(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
