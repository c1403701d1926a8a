"""Normalisation by the statistics of the batch on all ranks together, on the CPU as well.

Each rank computes mean and variance of its own part with torch's kernels, and one exchange joins them with the formula
of Chan, Golub and LeVeque for the variance of joined samples (https://doi.org/10.2307/2683386): unlike a sum of squares
it loses no digits where means are large.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from amp_runtime._distributed.channels import per_channel, widen
from amp_runtime._distributed.plainly import backward_plainly
from amp_runtime._distributed.shadow import shadowing


def _own_statistics(input: torch.Tensor) -> torch.Tensor:
    """Count, mean and sum of squared deviations of this rank's samples, as one vector of ``2C + 1``."""
    channels = input.shape[1]
    dtype = torch.float64 if input.dtype is torch.float64 else torch.float32
    count = 0 if shadowing() else input.numel() // max(channels, 1)
    if count == 0:
        return torch.zeros(2 * channels + 1, dtype=dtype, device=input.device)
    # Float buffers make torch compute the statistics of a half input in float; a momentum of 0 leaves them.
    buffers = torch.zeros(2, channels, dtype=dtype, device=input.device)
    mean, variance = torch.batch_norm_update_stats(input, buffers[0], buffers[1], 0.0)
    return torch.cat([mean, variance * count, mean.new_full((1,), float(count))])


def joint_statistics(input: torch.Tensor, group: Any) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean, biased variance and number of values a channel, over the ranks of ``group``. A collective.

    Raises:
        ValueError: there is only one value a channel.
    """
    own = _own_statistics(input)
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    together = torch.stack(parts)
    channels = input.shape[1]
    means, deviations, counts = together[:, :channels], together[:, channels:-1], together[:, -1:]
    count = float(counts.sum())
    if count <= 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got {count:g} over all ranks")
    first = means[int(counts.argmax())]  # means are added up as differences to one of them, which are small
    mean = first + (counts * (means - first)).sum(0) / count
    deviation = (deviations + counts * (means - mean).square()).sum(0)
    return mean, deviation / count, count


class Normalise(torch.autograd.Function):
    """Normalises by statistics of all ranks: one exchange forward, one backward.

    A backward pass that is to be differentiated again is computed by :func:`normalise_plainly` instead.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        variance: torch.Tensor,
        count: float,
        eps: float,
        group: Any,
    ) -> torch.Tensor:
        ctx.save_for_backward(input, weight, bias, mean, variance)
        ctx.count, ctx.eps, ctx.group, ctx.shadowing = count, eps, group, shadowing()
        wide = [None if scale is None else scale.to(mean.dtype) for scale in (weight, bias)]
        if input.numel() == 0:
            return torch.empty_like(input)
        return torch.batch_norm(input, wide[0], wide[1], mean, variance, False, 0.0, eps, False)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            return backward_plainly(ctx, gradients[0])
        input, weight, bias, mean, variance = ctx.saved_tensors
        gradient = gradients[0]
        wide = None if weight is None else weight.to(mean.dtype)
        inverse = torch.rsqrt(variance + ctx.eps)
        own = torch.zeros(2, input.shape[1], dtype=mean.dtype, device=input.device)
        if input.numel():
            gradient = gradient.to(input.dtype)
            _, own[1], own[0] = torch.ops.aten.native_batch_norm_backward(
                gradient, input, wide, mean, variance, None, None, False, ctx.eps, [False, True, True]
            )
        total = torch.zeros_like(own) if ctx.shadowing else own.clone()
        dist.all_reduce(total, group=ctx.group)
        # dx = scale / std * (dy - mean(dy) - x_hat * mean(dy * x_hat)), as a * dy + b * x + c with numbers a channel.
        scale = inverse if wide is None else inverse * wide
        to_input = widen(gradient) * per_channel(scale, input)
        if not ctx.shadowing:  # on which the statistics do not depend
            slope = -scale * inverse * total[1] / ctx.count
            offset = -scale * total[0] / ctx.count - slope * mean
            to_input.addcmul_(widen(input), per_channel(slope, input)).add_(per_channel(offset, input))
        to_input = to_input.to(input.dtype)
        return (
            to_input,
            None if weight is None or not ctx.needs_input_grad[1] else own[1].to(weight.dtype),
            None if bias is None or not ctx.needs_input_grad[2] else own[0].to(bias.dtype),
            *[None] * 5,
        )
