"""NovoGrad (Ginsburg et al., 2019, https://arxiv.org/abs/1905.11286)."""

from __future__ import annotations

import math
from typing import Any

import torch

from amp_runtime._core.versions import separated, two_norms
from amp_runtime.optim import _checks
from amp_runtime.optim._base import Base, Batch

NORM_TYPES = (2, 0)


class NovoGrad(Base):
    """Momentum SGD on gradients that are divided by a running mean of their norm, one number for each tensor.

    ``v = beta2 * v + (1 - beta2) * |g|^2`` (at first ``|g|^2``), ``m = beta1 * m + (g / (sqrt(v) + eps) +
    weight_decay * p)``, ``p -= lr * m``. Defaults are the paper's.

    Args:
        params: tensors, or dicts of group options; floating, of any shape. Half ones are updated in float32 and
            have float32 state.
        lr: the learning rate, at least 0; a number or a scalar tensor.
        betas: decay rates of the running means of the gradient and of its norm, each of [0, 1).
        eps: added to the denominator, at least 0.
        weight_decay: at least 0.
        grad_averaging: weigh the new term with ``1 - beta1`` in the mean ``m``; otherwise with 1.
        bias_correction: divide ``m`` and ``v`` by ``1 - beta ** step``.
        reg_inside_moment: divide by the norm and decay the weights inside ``m``, as the paper does; otherwise
            ``m`` is a mean of plain gradients, divided and decayed when it is applied.
        init_zero: begin ``v`` with 0 instead of with the first norm.
        norm_type: 2 for the 2-norm; 0 for the largest element, whose running mean is not squared.
        maximize: ascend instead of descend.
        foreach: ``False`` goes tensor by tensor, the plain reference; otherwise tensors are taken together.
        master_weights: keep float32 values of half parameters between steps, as ``master_param`` in the state.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.95, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        grad_averaging: bool = False,
        bias_correction: bool = False,
        reg_inside_moment: bool = True,
        init_zero: bool = False,
        norm_type: int = 2,
        maximize: bool = False,
        foreach: bool | None = None,
        master_weights: bool = False,
    ) -> None:
        name = type(self).__name__
        _checks.number(name, "lr", lr)
        _checks.pair(name, "betas", betas)
        _checks.number(name, "eps", eps)
        _checks.number(name, "weight_decay", weight_decay)
        _checks.choice(name, "norm_type", norm_type, NORM_TYPES)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "bias_correction": bias_correction,
            "reg_inside_moment": reg_inside_moment,
            "init_zero": init_zero,
            "norm_type": norm_type,
            "maximize": maximize,
            "foreach": foreach,
            "master_weights": master_weights,
        }
        super().__init__(params, defaults)

    def _update(self) -> None:
        for group in self.param_groups:
            for batch in self._batches(group):
                norms = self._running_norms(batch, group)
                (_one_by_one if group["foreach"] is False else _together)(batch, group, norms)

    def _running_norms(self, batch: Batch, group: dict[str, Any]) -> torch.Tensor:
        """Takes the gradients' norms into their running means; returns those, a vector with one for each tensor."""
        now = gradient_norms(batch.gradients, group["norm_type"])
        squared = group["norm_type"] == 2
        fresh = now.square() if squared else now
        first = torch.zeros_like(fresh) if group["init_zero"] else fresh
        held = torch.stack([
            state["exp_avg_sq"].to(fresh) if "exp_avg_sq" in state else start
            for state, start in zip(batch.states, separated(first), strict=True)
        ])  # fmt: skip
        blended = torch.lerp(held, fresh, 1 - group["betas"][1])
        for state, one in zip(batch.states, separated(blended), strict=True):
            state["exp_avg_sq"] = one.clone()
        return blended.sqrt() if squared else blended


def gradient_norms(gradients: list[torch.Tensor], norm_type: int) -> torch.Tensor:
    """A vector of the norms of the gradients: 2-norms, or largest elements for ``norm_type=0``."""
    return torch.stack(two_norms(gradients) if norm_type == 2 else torch._foreach_norm(gradients, math.inf))


def _one_by_one(batch: Batch, group: dict[str, Any], norms: torch.Tensor) -> None:
    beta1, correction1, divisors = _constants(batch, group, norms)
    weight = 1 - beta1 if group["grad_averaging"] else 1.0
    for value, gradient, exp_avg, divisor in zip(
        batch.values, batch.gradients, batch.buffers("exp_avg"), separated(divisors), strict=True
    ):
        if group["reg_inside_moment"]:
            gradient = gradient / divisor + group["weight_decay"] * value
            update = exp_avg.mul_(beta1).add_(gradient, alpha=weight) / correction1
        else:
            exp_avg.mul_(beta1).add_(gradient, alpha=weight)
            update = exp_avg / correction1 / divisor + group["weight_decay"] * value
        value.sub_(update * group["lr"])


def _together(batch: Batch, group: dict[str, Any], norms: torch.Tensor) -> None:
    beta1, correction1, divisors = _constants(batch, group, norms)
    weight = 1 - beta1 if group["grad_averaging"] else 1.0
    values, moments = batch.values, batch.buffers("exp_avg")
    inside, weight_decay = group["reg_inside_moment"], group["weight_decay"]
    terms = batch.gradients
    if inside:
        terms = batch.scratch.copy(terms, 0)
        torch._foreach_div_(terms, separated(divisors))
        if weight_decay:
            torch._foreach_add_(terms, values, alpha=weight_decay)
    torch._foreach_mul_(moments, beta1)
    torch._foreach_add_(moments, terms, alpha=weight)
    updates = batch.scratch.copy(moments, 0)
    rate = group["lr"] / correction1
    if inside:
        torch._foreach_mul_(updates, rate)
    else:
        torch._foreach_mul_(updates, separated(rate / divisors))
        if weight_decay:
            torch._foreach_mul_(values, 1 - group["lr"] * weight_decay)
    torch._foreach_sub_(values, updates)


def _constants(batch: Batch, group: dict[str, Any], norms: torch.Tensor) -> tuple[float, float, torch.Tensor]:
    """``beta1``, the correction of the mean, and what each gradient is divided by."""
    beta1, beta2 = group["betas"]
    correction1 = correction2 = 1.0
    if group["bias_correction"]:
        correction1 = 1 - beta1**batch.step
        correction2 = math.sqrt(1 - beta2**batch.step)
    return beta1, correction1, norms / correction2 + group["eps"]
