"""Steps through torch's fused kernels where they apply, and in plain arithmetic with what those lack."""

from __future__ import annotations

import math
from typing import Any

import torch

from amp_runtime.optim._fused import FUSED_DEVICES, is_plain, laid_out_alike
from amp_runtime.optim._scratch import Scratch, copy_into


def fusable(*lists: list[torch.Tensor]) -> bool:
    """Whether torch's fused kernels can take these tensors, which are of one device and type."""
    first = lists[0][0]
    if first.device.type not in ("cpu", "cuda") or first.dtype not in (torch.float32, torch.float64):
        return False
    return all(is_plain(tensors[0]) and laid_out_alike(*tensors) for tensors in zip(*lists, strict=True))


def adam_(
    values: list[torch.Tensor],
    gradients: list[torch.Tensor],
    exp_avgs: list[torch.Tensor],
    exp_avg_sqs: list[torch.Tensor],
    step: int | torch.Tensor,
    *,
    lr: Any,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
    bias_correction: bool = True,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """One step of Adam (``decoupled``: AdamW) in place, on tensors of one device and type.

    Args:
        values: the parameters, float32 or wider.
        gradients: theirs.
        exp_avgs: running means of the gradients.
        exp_avg_sqs: running means of their squares.
        step: the number of this step; a tensor is not waited for.
        lr: a number, or a scalar tensor.
        betas: decay rates of the two means.
        eps: added to the denominator.
        weight_decay: L2 penalty, or decay of the weights where ``decoupled``.
        decoupled: AdamW instead of Adam.
        bias_correction: divide the means by ``1 - beta ** step``.
        grad_scale: what to divide the gradients by, a float32 scalar; they are overwritten with the quotient.
        found_inf: a float32 scalar; 1.0 leaves everything as it is.
    """
    options: dict[str, Any] = {
        "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "decoupled": decoupled,
    }  # fmt: skip
    if fusable(values, gradients, exp_avgs, exp_avg_sqs):
        _adam_fused(
            values, gradients, exp_avgs, exp_avg_sqs, step if bias_correction else math.inf,
            grad_scale=grad_scale, found_inf=found_inf, **options,
        )  # fmt: skip
        return
    if found_inf is not None and bool(found_inf.item()):
        return
    if grad_scale is not None:
        torch._foreach_div_(gradients, float(grad_scale.item()))
    for value, gradient, exp_avg, exp_avg_sq in zip(values, gradients, exp_avgs, exp_avg_sqs, strict=True):
        adam_plain_(value, gradient, exp_avg, exp_avg_sq, step if bias_correction else math.inf, **options)


def adam_plain_(
    value: torch.Tensor,
    gradient: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: float | torch.Tensor,
    *,
    lr: Any,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> None:
    """One step of Adam on one tensor, as the paper writes it; ``step=math.inf`` corrects no bias."""
    if weight_decay and not decoupled:
        gradient = gradient.add(value, alpha=weight_decay)
    update = direction_plain(gradient, exp_avg, exp_avg_sq, step, betas, eps, 1 - betas[0])
    if weight_decay and decoupled:
        update.add_(value, alpha=weight_decay)
    value.sub_(update.mul_(lr))


def direction_plain(
    gradient: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: float | torch.Tensor,
    betas: tuple[float, float],
    eps: float,
    weight: float,
) -> torch.Tensor:
    """Adam's direction: the mean over the root of the mean square, with ``weight`` for the new gradient in the mean."""
    beta1, beta2 = betas
    exp_avg.mul_(beta1).add_(gradient, alpha=weight)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = exp_avg_sq.div(_correction(beta2, step)).sqrt_().add_(eps)
    return exp_avg.div(_correction(beta1, step)).div_(denominator)


def directions(
    gradients: list[torch.Tensor],
    exp_avgs: list[torch.Tensor],
    exp_avg_sqs: list[torch.Tensor],
    step: float | torch.Tensor,
    betas: tuple[float, float],
    eps: float,
    weight: float,
    scratch: Scratch,
) -> list[torch.Tensor]:
    """:func:`direction_plain` of many tensors of one device and type; the result may lie in the scratch memory.

    Fused Adam, stepping from zero with a learning rate of -1, leaves the direction behind.
    """
    if weight == 1 - betas[0] and fusable(gradients, exp_avgs, exp_avg_sqs):
        results = scratch.like(gradients, 1)
        torch._foreach_zero_(results)
        _adam_fused(
            results, gradients, exp_avgs, exp_avg_sqs, step,
            lr=-1.0, betas=betas, eps=eps, weight_decay=0.0, decoupled=False,
        )  # fmt: skip
        return results
    torch._foreach_mul_(exp_avgs, betas[0])
    torch._foreach_add_(exp_avgs, gradients, alpha=weight)
    torch._foreach_mul_(exp_avg_sqs, betas[1])
    torch._foreach_addcmul_(exp_avg_sqs, gradients, gradients, value=1 - betas[1])
    denominators = torch._foreach_div(exp_avg_sqs, _correction(betas[1], step))
    torch._foreach_sqrt_(denominators)
    torch._foreach_add_(denominators, eps)
    means = torch._foreach_div(exp_avgs, _correction(betas[0], step))
    torch._foreach_div_(means, denominators)
    return list(means)


def _correction(beta: float, step: float | torch.Tensor) -> Any:
    """``1 - beta ** step``, by way of float64: with a float32 ``step`` the first ones would lose three digits."""
    if isinstance(step, torch.Tensor):
        return (1 - beta ** step.double()).float()
    return 1 - beta**step


def sgd_(
    values: list[torch.Tensor],
    gradients: list[torch.Tensor],
    velocities: list[torch.Tensor],
    *,
    lr: Any,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    first: bool,
    decay_last: bool,
) -> None:
    """One step of SGD in place, on tensors of one device and type.

    Args:
        values: the parameters, float32 or wider.
        gradients: theirs.
        velocities: the momentum buffers; empty without momentum.
        lr: a number, or a scalar tensor.
        momentum: what the velocities are multiplied by.
        dampening: the new gradient enters the velocity with ``1 - dampening``.
        weight_decay: L2 penalty.
        nesterov: step along the gradient plus ``momentum`` times the velocity.
        first: the velocities have no value yet and become the gradients.
        decay_last: the penalty joins the step instead of the velocity.
    """
    if not (decay_last and weight_decay) and fusable(values, gradients, *([velocities] if momentum else [])):
        torch._fused_sgd_(
            values, gradients, velocities, weight_decay=weight_decay, momentum=momentum, lr=lr,
            dampening=dampening, nesterov=nesterov, maximize=False, is_first_step=first and bool(momentum),
        )  # fmt: skip
        return
    updates = gradients if decay_last else list(torch._foreach_add(gradients, values, alpha=weight_decay))
    if momentum:
        if first:
            copy_into(velocities, updates)
        else:
            torch._foreach_mul_(velocities, momentum)
            torch._foreach_add_(velocities, updates, alpha=1 - dampening)
        updates = list(torch._foreach_add(updates, velocities, alpha=momentum)) if nesterov else velocities
    if decay_last:
        updates = list(torch._foreach_add(updates, values, alpha=weight_decay))
    torch._foreach_sub_(values, torch._foreach_mul(updates, lr))


def adagrad_(
    values: list[torch.Tensor],
    gradients: list[torch.Tensor],
    sums: list[torch.Tensor],
    *,
    lr: Any,
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> None:
    """One step of Adagrad in place, on tensors of one device and type.

    Args:
        values: the parameters, float32 or wider.
        gradients: theirs.
        sums: of the squares of all gradients so far.
        lr: a number, or a scalar tensor.
        eps: added to the denominator.
        weight_decay: L2 penalty, or decay of the weights where ``decoupled``.
        decoupled: decay the weights instead of the penalty.
    """
    if decoupled and weight_decay:
        torch._foreach_mul_(values, 1 - lr * weight_decay)
    penalty = 0.0 if decoupled else weight_decay
    if values[0].device.type in FUSED_DEVICES["Adagrad"] and fusable(values, gradients, sums):
        count = torch.ones((), device=values[0].device)
        torch._fused_adagrad_(
            values, gradients, sums, [count] * len(values),
            lr=lr, lr_decay=0.0, weight_decay=penalty, eps=eps, maximize=False,
        )  # fmt: skip
        return
    for value, gradient, total in zip(values, gradients, sums, strict=True):
        gradient = gradient.add(value, alpha=penalty)
        total.addcmul_(gradient, gradient)
        value.sub_(gradient.div_(total.sqrt().add_(eps)).mul_(lr))


def _adam_fused(
    values: list[torch.Tensor],
    gradients: list[torch.Tensor],
    exp_avgs: list[torch.Tensor],
    exp_avg_sqs: list[torch.Tensor],
    step: float | torch.Tensor,
    *,
    lr: Any,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    # A step of infinity makes the corrections 1 - beta ** step exactly 1. A number is filled in, not copied, so that
    # nobody waits.
    if isinstance(step, torch.Tensor):
        count = step.to(values[0].device, torch.float32)
    else:
        count = torch.full((), step, dtype=torch.float32, device=values[0].device)
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
    kernel(
        values, gradients, exp_avgs, exp_avg_sqs, [], [count.reshape(())] * len(values),
        lr=lr, beta1=betas[0], beta2=betas[1], weight_decay=weight_decay, eps=eps,
        amsgrad=False, maximize=False, grad_scale=grad_scale, found_inf=found_inf,
    )  # fmt: skip
