"""Batch norm whose statistics are those of the batch on all ranks together, on the CPU as well.

``torch.nn.SyncBatchNorm`` refuses CPU tensors there. On CUDA torch's own synchronised kernels do the work. The file has
the name of torch's: scripts sort layers by ``"batchnorm" in str(layer.__class__)``.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from amp_runtime._core.callers import stacklevel
from amp_runtime._distributed.normalise import Normalise, joint_statistics
from amp_runtime._distributed.passes import end_passes
from amp_runtime._distributed.plainly import normalise_plainly
from amp_runtime._distributed.shadow import current_round


class SyncBatchNorm(_BatchNorm):
    """Batch norm over the batches of all ranks, which may differ in size or be empty.

    Evaluation, a single process, and evaluation without running statistics are plain batch norm. The input is
    ``(N, C, ...)``, floating; statistics are computed in float32 (float64 for float64), and the output has
    the input's dtype and memory format. Ranks that shadow the others (:func:`amp.shadowing`) are left out. Parameters,
    buffers and their names are those of ``torch.nn.SyncBatchNorm``, and so are the arguments. Pickled, one that was
    converted becomes the class of torch that it was.

    Args:
        num_features: the number of channels C.
        eps: added to the variance.
        momentum: the weight of a batch in the running statistics; ``None`` averages all batches.
        affine: whether there are a weight and a bias.
        track_running_stats: whether there are running statistics.
        process_group: the ranks that share statistics; ``None`` is all of them.
        device: where parameters and buffers are made.
        dtype: their type.
        options: further ones that torch's batch norm takes.

    Attributes:
        process_group: the ranks that share statistics; ``None`` is all of them.
        twice_differentiable: a gradient may be differentiated again on CUDA too, as gradient penalties do. It is slower
            there: torch's kernels cannot.

    Raises:
        ValueError: there is only one value per channel over all ranks.
    """

    process_group: Any = None
    twice_differentiable = False

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, **options)
        self.process_group = process_group

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: Any = None) -> nn.Module:
        """:func:`amp.convert_sync_batchnorm`, where ``torch.nn.SyncBatchNorm`` has it."""
        return convert_sync_batchnorm(module, process_group)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalises ``input`` of shape ``(N, C, ...)``."""
        if not (self.training and self._has_company()):
            return super().forward(input)
        self._check_input_dim(input)
        momentum = self._advance()
        if not torch.compiler.is_compiling():
            end_passes()
        group = self.process_group if self.process_group is not None else dist.group.WORLD
        if not input.is_cuda:
            forward = self._forward_cpu
            if torch.compiler.is_compiling():
                # It would trace the backward pass under the modes of the forward pass.
                forward = torch.compiler.disable(forward)  # type: ignore[no-untyped-call]
            output, mean, variance, count = forward(input, group)
        elif self.twice_differentiable or current_round() is not None:
            output, mean, variance, count = normalise_plainly(input, self.weight, self.bias, self.eps, group)
        else:
            return self._forward_cuda(input, momentum, group)
        self._track(mean, variance * (count / (count - 1)), momentum)
        return output

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

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

    def _forward_cpu(self, input: torch.Tensor, group: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
        with torch.no_grad():
            mean, variance, count = joint_statistics(input, group)
        output = Normalise.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, mean, variance, count, self.eps, group
        )
        return output, mean, variance, count

    def _forward_cuda(self, input: torch.Tensor, momentum: float, group: Any) -> torch.Tensor:
        from torch.nn.modules._functions import SyncBatchNorm as kernels

        output = kernels.apply(  # type: ignore[no-untyped-call]
            input,
            self.weight,
            self.bias,
            self.running_mean if self.track_running_stats else None,
            self.running_var if self.track_running_stats else None,
            self.eps,
            momentum,
            group,
            dist.get_world_size(group),
        )
        return cast(torch.Tensor, output)

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain, state = _PLAIN.get(type(self), type(self)), self._state()
        if issubclass(plain, (SyncBatchNorm, nn.SyncBatchNorm)):
            state["process_group"] = None  # a group belongs to this run
        else:
            state.pop("twice_differentiable", None)
            state.pop("process_group", None)
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
        # As in torch, a script may set ``track_running_stats`` for a while.
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)


class SyncBatchNorm1d(SyncBatchNorm, nn.BatchNorm1d):
    """A synchronised ``nn.BatchNorm1d``; still an instance of it."""

    _check_input_dim = nn.BatchNorm1d._check_input_dim


class SyncBatchNorm2d(SyncBatchNorm, nn.BatchNorm2d):
    """A synchronised ``nn.BatchNorm2d``; still an instance of it."""

    _check_input_dim = nn.BatchNorm2d._check_input_dim


class SyncBatchNorm3d(SyncBatchNorm, nn.BatchNorm3d):
    """A synchronised ``nn.BatchNorm3d``; still an instance of it."""

    _check_input_dim = nn.BatchNorm3d._check_input_dim


class SyncBatchNormOfTorch(SyncBatchNorm):
    """What a ``torch.nn.SyncBatchNorm`` becomes."""


_SYNCHRONISED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: SyncBatchNorm1d,
    nn.BatchNorm2d: SyncBatchNorm2d,
    nn.BatchNorm3d: SyncBatchNorm3d,
    nn.SyncBatchNorm: SyncBatchNormOfTorch,
}


_VENDORED: dict[str, type[nn.Module]] = {
    "SynchronizedBatchNorm1d": SyncBatchNorm1d,
    "SynchronizedBatchNorm2d": SyncBatchNorm2d,
    "SynchronizedBatchNorm3d": SyncBatchNorm3d,
}
"""Classes that scripts copy from https://github.com/vacancy/Synchronized-BatchNorm-PyTorch. They share their statistics
between the replicas of ``nn.DataParallel``, and are plain batch norm where there are none."""


def _synchronised(module: nn.Module) -> type[nn.Module] | None:
    """The class of the synchronised form of a batch norm, if it has one."""
    known = _SYNCHRONISED.get(type(module))
    if known is None and isinstance(module, _BatchNorm) and hasattr(module, "_sync_master"):
        return _VENDORED.get(type(module).__name__)
    return known


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
    lists of layers and optimizers made before keep working, and so does ``isinstance(m, nn.BatchNorm2d)``. Those that
    synchronise the replicas of ``nn.DataParallel`` synchronise the ranks from then on.
    Batch norms of other classes are left as they are, with a warning.
    """
    left: set[str] = set()
    for module in model.modules():
        target = _synchronised(module)
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
            stacklevel=stacklevel(),
        )
