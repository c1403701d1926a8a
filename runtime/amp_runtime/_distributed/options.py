"""How a script asks for gradients to travel, and torch's DistributedDataParallel is told."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from amp_runtime._distributed.exchange import Exchange


def checked_exchange(
    message_size: int | None, gradient_predivide_factor: float, allreduce_always_fp32: bool, average: bool = True
) -> Exchange:
    """The exchange that the keywords of ``prepare_model`` describe.

    Raises:
        ValueError: a size or factor is not positive, or not finite.
    """
    if message_size is not None and (isinstance(message_size, bool) or message_size < 1):
        raise ValueError(
            f"amp.prepare_model got message_size={message_size!r}; allowed: None, or a positive number of elements"
        )
    factor = float(gradient_predivide_factor)
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(
            f"amp.prepare_model got gradient_predivide_factor={gradient_predivide_factor!r}; allowed: a positive number"
        )
    return Exchange(message_size, None if factor == 1.0 else factor, allreduce_always_fp32, average)


def average_in_ddp(state: tuple[Exchange, dist.ProcessGroup], bucket: Any) -> torch.futures.Future[Any]:
    """A communication hook for torch's DistributedDataParallel."""
    exchange, group = state
    buffer = bucket.buffer()
    divisor, after = exchange.factors(group.size())
    wide = exchange.widen(buffer)
    wide.div_(divisor)
    work: Any = dist.all_reduce(wide, group=group, async_op=True)

    def finish(_: Any) -> torch.Tensor:
        if after != 1.0:
            wide.mul_(after)
        return buffer if wide is buffer else buffer.copy_(wide)

    future: torch.futures.Future[Any] = work.get_future().then(finish)
    return future
