"""Batch norm whose statistics are those of the batch on all ranks together, on the CPU as well.

``torch.nn.SyncBatchNorm`` refuses CPU tensors. Here each rank computes mean and variance of its own part with torch's
kernels, and one exchange joins them with the formula of Chan, Golub and LeVeque for the variance of joined samples
(https://doi.org/10.2307/2683386): unlike a sum of squares it loses no digits where means are large. On CUDA torch's
own synchronised kernels do the work.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from amp_runtime._core.context import HALF_DTYPES
from amp_runtime._distributed.shadow import current_round, shadowing


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


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in HALF_DTYPES else tensor


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A vector with one value a channel, in a shape that goes with ``like``."""
    return values.view([1, -1] + [1] * (like.dim() - 2))


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


def _statistics(input: torch.Tensor, group: Any) -> tuple[torch.Tensor, torch.Tensor, float]:
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


class _Normalise(torch.autograd.Function):
    """Normalises by statistics of all ranks: one exchange forward, one backward.

    A backward pass that is to be differentiated again is computed by :func:`_normalise_plainly` instead.
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
            return _backward_plainly(ctx, gradients[0])
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
        to_input = _widen(gradient) * _per_channel(scale, input)
        if not ctx.shadowing:  # on which the statistics do not depend
            slope = -scale * inverse * total[1] / ctx.count
            offset = -scale * total[0] / ctx.count - slope * mean
            to_input.addcmul_(_widen(input), _per_channel(slope, input)).add_(_per_channel(offset, input))
        to_input = to_input.to(input.dtype)
        return (
            to_input,
            None if weight is None or not ctx.needs_input_grad[1] else own[1].to(weight.dtype),
            None if bias is None or not ctx.needs_input_grad[2] else own[0].to(bias.dtype),
            *[None] * 5,
        )


def _normalise_plainly(
    input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, group: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """The same from operations that autograd can differentiate as often as it likes; also mean, variance and count.

    Raises:
        ValueError: there is only one value a channel.
    """
    wide = _widen(input)
    own = 0.0 if shadowing() else 1.0
    axes = [axis for axis in range(input.dim()) if axis != 1]
    values = own * (input.numel() // max(input.shape[1], 1))
    sums = _sum_over_ranks(torch.cat([wide.sum(axes) * own, wide.new_full((1,), values)]), group)
    count = float(sums[-1].detach())
    if count <= 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got {count:g} over all ranks")
    mean = sums[:-1] / count
    centred = wide - _per_channel(mean, input)
    variance = _sum_over_ranks((centred * centred).sum(axes) * own, group) / count
    result = centred * _per_channel(torch.rsqrt(variance + eps), input)
    if weight is not None:
        result = result * _per_channel(weight, input)
    if bias is not None:
        result = result + _per_channel(bias, input)
    return result.to(input.dtype), mean.detach(), variance.detach(), count


def _backward_plainly(ctx: Any, gradient: torch.Tensor) -> Any:
    input, weight, bias, *_ = ctx.saved_tensors
    output, *_ = _normalise_plainly(input, weight, bias, ctx.eps, ctx.group)
    wanted = [t for t in (input, weight, bias) if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=True))
    return (*(None if t is None or not t.requires_grad else next(found) for t in (input, weight, bias)), *[None] * 5)


class SyncBatchNorm(_BatchNorm):
    """Batch norm over the batches of all ranks, which may differ in size or be empty.

    Evaluation, a single process, and evaluation without running statistics are plain batch norm. The input is
    ``(N, C, ...)``, floating; statistics are computed in float32 (float64 for float64), and the output has
    the input's dtype and memory format. Ranks that shadow the others (:func:`amp.shadowing`) are left out. Pickled, it
    becomes the class of torch that it was.

    Attributes:
        process_group: the ranks that share statistics; ``None`` is all of them.
        twice_differentiable: a gradient may be differentiated again on CUDA too, as gradient penalties do. It is slower
            there: torch's kernels cannot.

    Raises:
        ValueError: there is only one value per channel over all ranks.
    """

    process_group: Any = None
    twice_differentiable = False

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalises ``input`` of shape ``(N, C, ...)``."""
        if not (self.training and self._has_company()):
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        momentum = self._advance()
        group = self.process_group if self.process_group is not None else dist.group.WORLD
        if not input.is_cuda:
            with torch.no_grad():
                mean, variance, count = _statistics(input, group)
            output = _Normalise.apply(  # type: ignore[no-untyped-call]
                input, self.weight, self.bias, mean, variance, count, self.eps, group
            )
        elif self.twice_differentiable or current_round() is not None:
            output, mean, variance, count = _normalise_plainly(input, self.weight, self.bias, self.eps, group)
        else:
            return self._forward_cuda(input, momentum, group)
        self._track(mean, variance * (count / (count - 1)), momentum)
        return cast(torch.Tensor, output)

    def _has_company(self) -> bool:
        """Whether there is another rank to share statistics with."""
        if not (dist.is_available() and dist.is_initialized()):
            return False
        return dist.get_world_size(self.process_group) > 1

    def _advance(self) -> float:
        """Counts the batch; returns the weight of its statistics in the running ones."""
        if not self.track_running_stats or self.num_batches_tracked is None:
            return 0.0 if self.momentum is None else self.momentum
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum

    def _forward_cuda(self, input: torch.Tensor, momentum: float, group: Any) -> torch.Tensor:
        from torch.nn.modules._functions import SyncBatchNorm as kernels

        output = kernels.apply(  # type: ignore[no-untyped-call]
            input,
            self.weight,
            self.bias,
            self.running_mean,
            self.running_var,
            self.eps,
            momentum,
            group,
            dist.get_world_size(group),
        )
        return cast(torch.Tensor, output)

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = _PLAIN.get(type(self))
        if plain is None:
            return super().__reduce_ex__(protocol)
        state = self._state()
        if plain is not nn.SyncBatchNorm:
            state.pop("twice_differentiable", None)
            state.pop("process_group", None)
        elif "process_group" in state:
            state["process_group"] = None  # a group belongs to this run
        return object.__new__, (plain,), state

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncBatchNorm:
        clone = memo[id(self)] = type(self).__new__(type(self))
        memo[id(self.process_group)] = self.process_group  # of which there is only one
        clone.__dict__.update(copy.deepcopy(self._state(), memo))
        return clone

    def __copy__(self) -> SyncBatchNorm:
        clone = type(self).__new__(type(self))
        clone.__dict__.update(self._state())
        return clone

    def _state(self) -> dict[str, Any]:
        parts: Any = super().__reduce_ex__(2)
        state: dict[str, Any] = dict(parts[2])
        return state

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, momentum: float) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)


class SyncBatchNorm1d(SyncBatchNorm, nn.BatchNorm1d):
    """A synchronised ``nn.BatchNorm1d``; still an instance of it."""


class SyncBatchNorm2d(SyncBatchNorm, nn.BatchNorm2d):
    """A synchronised ``nn.BatchNorm2d``; still an instance of it."""


class SyncBatchNorm3d(SyncBatchNorm, nn.BatchNorm3d):
    """A synchronised ``nn.BatchNorm3d``; still an instance of it."""


class SyncBatchNormAnyDim(SyncBatchNorm):
    """What a ``torch.nn.SyncBatchNorm`` becomes: it takes any number of dimensions from two."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")


_SYNCHRONISED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: SyncBatchNorm1d,
    nn.BatchNorm2d: SyncBatchNorm2d,
    nn.BatchNorm3d: SyncBatchNorm3d,
    nn.SyncBatchNorm: SyncBatchNormAnyDim,
}


_PLAIN = {synchronised: plain for plain, synchronised in _SYNCHRONISED.items()}


def convert_sync_batchnorm(module: nn.Module, process_group: Any = None) -> nn.Module:
    """Synchronises the batch norms in ``module``, on the CPU too, as ``torch.nn.SyncBatchNorm`` does on CUDA.

    ``amp.prepare_model`` does it by itself for several processes; this is for groups smaller than the world, and for
    scripts that make their process group themselves, without ``amp.init``. It happens in place: each batch norm
    stays the same object with the same parameters, buffers and hooks, and only changes its class.

    Args:
        module: the model, or a single batch norm.
        process_group: the ranks that share statistics, such as of :func:`create_syncbn_process_group`; ``None`` is
            all, or the group that a batch norm has already.

    Returns:
        ``module`` itself.

    Raises:
        TypeError: ``module`` is not a module.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"amp.convert_sync_batchnorm got {type(module).__name__}; allowed: a torch.nn.Module")
    synchronise_batch_norm(module)
    for part in module.modules():
        if isinstance(part, SyncBatchNorm) and process_group is not None:
            part.process_group = process_group
    return module


def create_syncbn_process_group(group_size: int) -> Any:
    """Divides the ranks into groups of ``group_size`` neighbours, as Apex's function of this name did. A collective.

    Args:
        group_size: how many ranks share statistics; 0 is all of them. It divides the number of processes.

    Returns:
        This rank's group; ``None``, which stands for all ranks, for 0 and without other processes.

    Raises:
        ValueError: ``group_size`` is negative, or does not divide the number of processes.
    """
    size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if isinstance(group_size, bool) or group_size < 0 or (group_size and size % group_size):
        allowed = [0, *(divisor for divisor in range(1, size + 1) if size % divisor == 0)]
        raise ValueError(
            f"create_syncbn_process_group got group_size={group_size!r} for {size} process(es); allowed: "
            + ", ".join(map(str, allowed))
        )
    if group_size == 0 or size == 1:
        return None
    mine = None
    for first in range(0, size, group_size):
        ranks = list(range(first, first + group_size))
        group = dist.new_group(ranks)  # every rank takes part in making every group
        if dist.get_rank() in ranks:
            mine = group
    return mine


def synchronise_batch_norm(model: nn.Module, twice_differentiable: bool = False) -> None:
    """Turns the batch norms of ``model`` into synchronised ones, in place.

    Each module stays the same object with the same parameters, buffers and hooks, and only changes its class:
    lists of layers and optimizers made before keep working, and so does ``isinstance(m, nn.BatchNorm2d)``.
    Batch norms of other classes are left as they are, with a warning.
    """
    left: set[str] = set()
    for module in model.modules():
        target = _SYNCHRONISED.get(type(module))
        if target is not None:
            module.__class__ = target
        elif isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
            left.add(type(module).__name__)
        if twice_differentiable and isinstance(module, SyncBatchNorm):
            module.twice_differentiable = True
    if left:
        warnings.warn(
            f"batch norm of class {', '.join(sorted(left))} is not synchronised: each rank normalises by its "
            "own batch. Known classes: nn.BatchNorm1d, 2d, 3d, nn.SyncBatchNorm",
            stacklevel=3,
        )
