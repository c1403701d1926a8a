"""Gradients travel as torch's DistributedDataParallel has them travel."""

from __future__ import annotations

from typing import Any

from amp_runtime._core.left_out import refuse
from amp_runtime._distributed.exchange import PLAIN, Exchange

average_in_ddp: Any = None  # not asked for


def checked_exchange(*given: Any) -> Exchange:
    """The exchange without any option.

    Raises:
        LeftOutError: one is given.
    """
    if given != (None, 1.0, False):
        refuse("message_size, gradient_predivide_factor or allreduce_always_fp32")
    return PLAIN
