"""Normalisation from operations that autograd can differentiate as often as it likes."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist

from amp_runtime._distributed.channels import per_channel, widen
from amp_runtime._distributed.shadow import shadowing


class _SumOverRanks(torch.autograd.Function):
    """The sum over the processes.

    Its gradient is the same sum, because every rank's loss depends on every rank.
    """

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        total = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _sum_over_ranks(gradients[0], ctx.group), None


def _sum_over_ranks(value: torch.Tensor, group: Any) -> torch.Tensor:
    return cast(torch.Tensor, _SumOverRanks.apply(value, group))  # type: ignore[no-untyped-call]


def normalise_plainly(
    input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, group: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """The same from operations that autograd can differentiate as often as it likes; also mean, variance and count.

    Raises:
        ValueError: there is only one value a channel.
    """
    wide = widen(input)
    own = 0.0 if shadowing() else 1.0
    axes = [axis for axis in range(input.dim()) if axis != 1]
    values = own * (input.numel() // max(input.shape[1], 1))
    sums = _sum_over_ranks(torch.cat([wide.sum(axes) * own, wide.new_full((1,), values)]), group)
    count = float(sums[-1].detach())
    if count <= 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got {count:g} over all ranks")
    mean = sums[:-1] / count
    centred = wide - per_channel(mean, input)
    variance = _sum_over_ranks((centred * centred).sum(axes) * own, group) / count
    result = centred * per_channel(torch.rsqrt(variance + eps), input)
    if weight is not None:
        result = result * per_channel(weight, input)
    if bias is not None:
        result = result + per_channel(bias, input)
    return result.to(input.dtype), mean.detach(), variance.detach(), count


def backward_plainly(ctx: Any, gradient: torch.Tensor) -> Any:
    """The backward pass of :class:`normalise.Normalise`, for one that is to be differentiated again."""
    input, weight, bias, *_ = ctx.saved_tensors
    output, *_ = normalise_plainly(input, weight, bias, ctx.eps, ctx.group)
    wanted = [t for t in (input, weight, bias) if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=True))
    return (*(None if t is None or not t.requires_grad else next(found) for t in (input, weight, bias)), *[None] * 5)
