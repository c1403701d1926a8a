"""``apex.multi_tensor_apply.multi_tensor_apply``."""

from __future__ import annotations

from typing import Any

import torch


class MultiTensorApply:
    """Calls operations of ``amp_C`` with a chunk size in front.

    Args:
        chunk_size: handed to the operations, where it changes nothing.

    Attributes:
        available: always true here.
        warned: always false here.
    """

    available = True
    warned = False

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def check_avail(self) -> None:
        """Does nothing: the operations are always there."""

    def __call__(self, op: Any, noop_flag_buffer: torch.Tensor, tensor_lists: Any, *args: Any) -> Any:
        """Calls ``op`` on lists of tensors.

        Args:
            op: an operation of ``amp_C``, or a function with its arguments.
            noop_flag_buffer: an int32 tensor of one element, set to 1 where the operation finds a value that is not
                finite.
            tensor_lists: lists of tensors, as the operation wants them.
            args: the operation's other arguments.

        Returns:
            What the operation returns.
        """
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)
