"""Batch norm whose statistics are those of the batch on all ranks together, on the CPU as well.

``torch.nn.SyncBatchNorm`` refuses CPU tensors. Here the sums are exchanged by an all-reduce that autograd can
differentiate, also twice; on CUDA torch's own kernels do the work.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from amp_runtime._core.context import context


class _SumOverRanks(torch.autograd.Function):
    """The sum over the processes.

    Its gradient is the same sum, because every rank's loss depends on every rank.
    """

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        total = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _sum_over_ranks(gradients[0])


def _sum_over_ranks(value: torch.Tensor) -> torch.Tensor:
    return cast(torch.Tensor, _SumOverRanks.apply(value))  # type: ignore[no-untyped-call]


class SyncBatchNorm(_BatchNorm):
    """Batch norm over the batches of all ranks, which may differ in size or be empty.

    Evaluation, a single process, and evaluation without running statistics are plain batch norm. The input is
    ``(N, C, ...)``, floating; statistics are computed in float32 (float64 for float64), and the output has
    the input's dtype. Pickled, it becomes the class of torch that it was.

    Attributes:
        twice_differentiable: a gradient may be differentiated again, as gradient penalties do. On CUDA this is
            slower: torch's kernels cannot.

    Raises:
        ValueError: there is only one value per channel over all ranks.
    """

    twice_differentiable = False

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalises ``input`` of shape ``(N, C, ...)``."""
        if not (self.training and context.distributed):
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        momentum = self._advance()
        if input.is_cuda and not self.twice_differentiable:
            return self._forward_cuda(input, momentum)
        return self._forward_plain(input, momentum)

    def _advance(self) -> float:
        """Counts the batch; returns the weight of its statistics in the running ones."""
        if not self.track_running_stats or self.num_batches_tracked is None:
            return 0.0 if self.momentum is None else self.momentum
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum

    def _forward_plain(self, input: torch.Tensor, momentum: float) -> torch.Tensor:
        wide = input if input.dtype is torch.float64 else input.float()
        axes = [axis for axis in range(input.dim()) if axis != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        per_channel = input.numel() // max(input.shape[1], 1)
        sums = torch.cat([wide.sum(axes), wide.new_full((1,), float(per_channel))])
        sums = _sum_over_ranks(sums)
        count = float(sums[-1].detach())
        if count <= 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got {count:g} over all ranks")
        mean = sums[:-1] / count
        centred = wide - mean.view(shape)
        # The variance from centred values, in a second exchange: a difference of sums of squares loses its
        # digits.
        variance = _sum_over_ranks((centred * centred).sum(axes)) / count
        self._track(mean.detach(), variance.detach() * (count / (count - 1)), momentum)
        result = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            result = result * self.weight.view(shape)
        if self.bias is not None:
            result = result + self.bias.view(shape)
        return result.to(input.dtype)

    def _forward_cuda(self, input: torch.Tensor, momentum: float) -> torch.Tensor:
        from torch.nn.modules._functions import SyncBatchNorm as kernels

        output = kernels.apply(  # type: ignore[no-untyped-call]
            input,
            self.weight,
            self.bias,
            self.running_mean,
            self.running_var,
            self.eps,
            momentum,
            dist.group.WORLD,
            context.world_size,
        )
        return cast(torch.Tensor, output)

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = _PLAIN.get(type(self))
        return super().__reduce_ex__(protocol) if plain is None else (object.__new__, (plain,), self._state())

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncBatchNorm:
        clone = memo[id(self)] = type(self).__new__(type(self))
        clone.__dict__.update(copy.deepcopy(self._state(), memo))
        return clone

    def __copy__(self) -> SyncBatchNorm:
        clone = type(self).__new__(type(self))
        clone.__dict__.update(self._state())
        return clone

    def _state(self) -> dict[str, Any]:
        parts: Any = super().__reduce_ex__(2)
        state: dict[str, Any] = parts[2]
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
