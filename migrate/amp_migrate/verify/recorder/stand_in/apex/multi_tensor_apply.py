"""Stands in for ``apex.multi_tensor_apply``."""

from typing import NoReturn


class MultiTensorApply:
    """Knows that Apex's kernels are not there."""

    available = False

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(self, *args: object) -> NoReturn:
        """Refuse."""
        raise NotImplementedError("apex.multi_tensor_apply needs Apex")


multi_tensor_applier = MultiTensorApply(2048 * 32)
