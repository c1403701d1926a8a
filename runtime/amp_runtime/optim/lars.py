"""LARS (You et al., 2017, https://arxiv.org/abs/1708.03888)."""

from __future__ import annotations

from typing import Any

import torch

from amp_runtime._core.versions import separated, two_norms
from amp_runtime.optim import _checks
from amp_runtime.optim._base import Base, Batch


class LARS(Base):
    """Momentum SGD with a learning rate for each tensor, for large batches.

    ``v = momentum * v + lr * ratio * (g + weight_decay * p)``, ``p -= v``, with
    ``ratio = trust_coefficient * |p| / (|g| + weight_decay * |p| + eps)``, and 1 where ``|p|`` or ``|g|`` is 0.

    Args:
        params: tensors, or dicts of group options; floating, of any shape. Half ones are updated in float32 and
            have float32 state.
        lr: the learning rate, at least 0; a number or a scalar tensor.
        momentum: of [0, 1).
        weight_decay: at least 0.
        trust_coefficient: at least 0.
        eps: added to the denominator of the ratio, at least 0.
        nesterov: step along ``momentum * v`` plus the newest term.
        adapt: ``False`` leaves the ratio at 1. Usual in a group of biases and norm weights.
        maximize: ascend instead of descend.
        foreach: ``False`` goes tensor by tensor, the plain reference; otherwise tensors are taken together.
        master_weights: keep float32 values of half parameters between steps, as ``master_param`` in the state.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range, or ``nesterov`` without momentum.
    """

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        eps: float = 1e-8,
        *,
        nesterov: bool = False,
        adapt: bool = True,
        maximize: bool = False,
        foreach: bool | None = None,
        master_weights: bool = False,
    ) -> None:
        _checks.number("LARS", "lr", lr)
        _checks.number("LARS", "momentum", momentum, below=1.0)
        _checks.number("LARS", "weight_decay", weight_decay)
        _checks.number("LARS", "trust_coefficient", trust_coefficient)
        _checks.number("LARS", "eps", eps)
        if nesterov and not momentum:
            raise ValueError(f"LARS got nesterov=True and momentum={momentum!r}; allowed: a momentum above 0")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "eps": eps,
            "nesterov": nesterov,
            "adapt": adapt,
            "maximize": maximize,
            "foreach": foreach,
            "master_weights": master_weights,
        }
        super().__init__(params, defaults)

    def _steps(self, group: dict[str, Any], parameters: list[torch.Tensor]) -> list[int]:
        return [0] * len(parameters)  # nothing depends on the count

    def _update(self) -> None:
        for group in self.param_groups:
            for batch in self._batches(group):
                (_one_by_one if group["foreach"] is False else _together)(batch, group)


def _one_by_one(batch: Batch, group: dict[str, Any]) -> None:
    momentum, weight_decay = group["momentum"], group["weight_decay"]
    for state, value, gradient in zip(batch.states, batch.values, batch.gradients, strict=True):
        update = gradient.add(value, alpha=weight_decay)
        rate = group["lr"]
        if group["adapt"]:
            rate = rate * ratios(value.norm(), gradient.norm(), group["trust_coefficient"], weight_decay, group["eps"])
        update.mul_(rate)
        if momentum:
            single = Batch([value], [value], [gradient], [state], batch.step)
            velocity = single.buffers("momentum_buffer")[0]
            velocity.mul_(momentum).add_(update)
            update = update.add(velocity, alpha=momentum) if group["nesterov"] else velocity
        value.sub_(update)


def _together(batch: Batch, group: dict[str, Any]) -> None:
    momentum, weight_decay = group["momentum"], group["weight_decay"]
    values, gradients = batch.values, batch.gradients
    updates = batch.scratch.copy(gradients, 0)
    if weight_decay:
        torch._foreach_add_(updates, values, alpha=weight_decay)
    if group["adapt"]:
        norms = torch.stack(two_norms(values)), torch.stack(two_norms(gradients))
        ratio = ratios(*norms, group["trust_coefficient"], weight_decay, group["eps"])
        torch._foreach_mul_(updates, separated(ratio * group["lr"]))
    else:
        torch._foreach_mul_(updates, group["lr"])
    if momentum:
        velocities = batch.buffers("momentum_buffer")
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, updates)
        if group["nesterov"]:
            torch._foreach_add_(updates, velocities, alpha=momentum)
        else:
            updates = velocities
    torch._foreach_sub_(values, updates)


def ratios(
    norm: torch.Tensor, gradient_norm: torch.Tensor, trust_coefficient: float, weight_decay: float, eps: float
) -> torch.Tensor:
    """The layer-wise factors of the learning rate, for scalars or vectors of norms; 1 where a norm is 0."""
    adaptive = trust_coefficient * norm / (gradient_norm + weight_decay * norm + eps)
    return torch.where((norm > 0) & (gradient_norm > 0), adaptive, 1.0)
