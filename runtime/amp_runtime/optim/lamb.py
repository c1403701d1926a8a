"""LAMB (You et al., 2019, https://arxiv.org/abs/1904.00962)."""

from __future__ import annotations

import math
from typing import Any

import torch

from amp_runtime._core.versions import separated, two_norms
from amp_runtime.optim import _checks
from amp_runtime.optim._base import Base, Batch, total_norm
from amp_runtime.optim._kernels import direction_plain, directions


class LAMB(Base):
    """Adam whose update of each tensor is scaled to the tensor's own norm, for very large batches.

    ``p -= lr * |p| / |u| * u`` where ``u`` is Adam's update, weight decay included; a tensor whose norm, or whose
    update's, is 0 takes ``p -= lr * u``. As in NVIDIA's implementation
    (https://developer.nvidia.com/blog/pretraining-bert-with-layer-wise-adaptive-learning-rates/) only tensors with
    weight decay are scaled unless ``always_adapt``, and the gradients can be clipped first.

    Args:
        params: tensors, or dicts of group options; floating, of any shape. Half ones are updated in float32 and
            have float32 state.
        lr: the learning rate, at least 0; a number or a scalar tensor.
        betas: decay rates of the running means of the gradient and of its square, each of [0, 1).
        eps: added to the denominator, at least 0.
        weight_decay: at least 0.
        bias_correction: divide the running means by ``1 - beta ** step``.
        adam_w_mode: add the weight decay to the update; otherwise to the gradient, as an L2 penalty.
        grad_averaging: weigh a new gradient with ``1 - beta1`` in the mean; otherwise with 1.
        max_grad_norm: scale all gradients of all groups down to this 2-norm; ``None`` or 0 does not.
        always_adapt: scale tensors without weight decay too (NVLAMB).
        maximize: ascend instead of descend.
        foreach: ``False`` goes tensor by tensor, the plain reference; otherwise tensors are taken together.
        master_weights: keep float32 values of half parameters between steps, as ``master_param`` in the state.
            Not needed at O2, where ``amp.prepare_model`` makes them.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        bias_correction: bool = True,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        max_grad_norm: float | None = None,
        always_adapt: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        master_weights: bool = False,
    ) -> None:
        name = type(self).__name__
        _checks.number(name, "lr", lr)
        _checks.pair(name, "betas", betas)
        _checks.number(name, "eps", eps)
        _checks.number(name, "weight_decay", weight_decay)
        _checks.number(name, "max_grad_norm", max_grad_norm, optional=True)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "adam_w_mode": adam_w_mode,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
            "always_adapt": always_adapt,
            "maximize": maximize,
            "foreach": foreach,
            "master_weights": master_weights,
        }
        super().__init__(params, defaults)

    def _update(self) -> None:
        factor = self._clip_factor()
        for group in self.param_groups:
            for batch in self._batches(group):
                apply = _one_by_one if group["foreach"] is False else _together
                apply(batch, group, factor)

    def _clip_factor(self) -> torch.Tensor | None:
        """What to multiply gradients by; the limit is the constructor's, whatever the groups say, as in Apex."""
        limit = self.defaults["max_grad_norm"]
        if not limit:
            return None
        norm = total_norm(self)
        if norm.device.type == "cpu" and norm <= limit:
            return None
        return torch.clamp(limit / norm, max=1.0)


def _one_by_one(batch: Batch, group: dict[str, Any], factor: torch.Tensor | None) -> None:
    weight_decay, decoupled = group["weight_decay"], group["adam_w_mode"]
    step = batch.step if group["bias_correction"] else math.inf
    weight = 1 - group["betas"][0] if group["grad_averaging"] else 1.0
    for value, gradient, exp_avg, exp_avg_sq in zip(
        batch.values, batch.gradients, batch.buffers("exp_avg"), batch.buffers("exp_avg_sq"), strict=True
    ):
        if factor is not None:
            gradient = gradient * factor.to(gradient.device)
        if weight_decay and not decoupled:
            gradient = gradient.add(value, alpha=weight_decay)
        update = direction_plain(gradient, exp_avg, exp_avg_sq, step, group["betas"], group["eps"], weight)
        if weight_decay and decoupled:
            update.add_(value, alpha=weight_decay)
        rate = group["lr"]
        if weight_decay or group["always_adapt"]:
            rate = rate * trust_ratio(value.norm(), update.norm())
        value.sub_(update.mul_(rate))


def _together(batch: Batch, group: dict[str, Any], factor: torch.Tensor | None) -> None:
    weight_decay, decoupled = group["weight_decay"], group["adam_w_mode"]
    step = batch.step if group["bias_correction"] else math.inf
    weight = 1 - group["betas"][0] if group["grad_averaging"] else 1.0
    values, gradients = batch.values, batch.gradients
    if factor is not None or (weight_decay and not decoupled):
        gradients = batch.scratch.copy(gradients, 0)
    if factor is not None:
        torch._foreach_mul_(gradients, factor.to(gradients[0]))
    if weight_decay and not decoupled:
        torch._foreach_add_(gradients, values, alpha=weight_decay)
    updates = directions(
        gradients, batch.buffers("exp_avg"), batch.buffers("exp_avg_sq"), step, group["betas"], group["eps"], weight,
        batch.scratch,
    )  # fmt: skip
    if weight_decay and decoupled:
        torch._foreach_add_(updates, values, alpha=weight_decay)
    if weight_decay or group["always_adapt"]:
        norms = torch.stack(two_norms(values)), torch.stack(two_norms(updates))
        torch._foreach_mul_(updates, separated(trust_ratio(*norms) * group["lr"]))
    else:
        torch._foreach_mul_(updates, group["lr"])
    torch._foreach_sub_(values, updates)


def trust_ratio(norm: torch.Tensor, update_norm: torch.Tensor) -> torch.Tensor:
    """``norm / update_norm``, and 1 where one of them is 0."""
    return torch.where((norm > 0) & (update_norm > 0), norm / update_norm, 1.0)
