"""The step of Apex's FusedAdam before October 2019, on gradients and into copies that the caller provides."""

from __future__ import annotations

import math
from typing import Any

import torch

from amp_runtime._core.context import HALF_DTYPES
from amp_runtime.optim._base import buffer


def old_adam_step(
    optimizer: torch.optim.Optimizer,
    grads: Any,
    output_params: Any,
    scale: float,
    grad_norms: Any,
    *,
    eps_inside_sqrt: bool,
) -> None:
    """Updates the optimizer's parameters.

    Args:
        optimizer: its groups have ``lr, betas, eps, weight_decay, bias_correction, max_grad_norm``.
        grads: scaled gradients to use instead of the parameters' own: an iterable, or a list of lists by group.
        output_params: tensors that get a copy of the new parameters, in the same form.
        scale: what the gradients are divided by.
        grad_norms: for each group the 2-norm of its scaled gradients; computed where it is wanted and missing.
        eps_inside_sqrt: divide by ``sqrt(v + eps)`` instead of ``sqrt(v) + eps``.

    Raises:
        RuntimeError: a gradient is sparse.
    """
    count = len(optimizer.param_groups)
    norms = [None] * count if grad_norms is None else list(grad_norms)
    rows = zip(optimizer.param_groups, by_group(grads, count), by_group(output_params, count), norms, strict=False)
    for group, given, outputs, norm in rows:
        parameters = group["params"]
        gradients = [p.grad for p in parameters] if given is None else list(given)
        _refuse_sparse(optimizer, gradients)
        combined = _combined_scale(gradients, scale, norm, group["max_grad_norm"])
        for parameter, gradient, output in zip(
            parameters, gradients, [None] * len(parameters) if outputs is None else outputs, strict=False
        ):
            if gradient is not None:
                _step_one(optimizer.state[parameter], parameter, gradient, combined, group, eps_inside_sqrt)
                if output is not None:
                    output.copy_(parameter)


def by_group(given: Any, count: int) -> list[Any]:
    """One entry a group: what was given for it, or ``None``; a list without lists is for the first group."""
    if given is None:
        return [None] * count
    listed = list(given)
    return listed if listed and isinstance(listed[0], list) else [listed]


def _refuse_sparse(optimizer: torch.optim.Optimizer, gradients: list[torch.Tensor | None]) -> None:
    for gradient in gradients:
        if gradient is not None and gradient.layout is not torch.strided:
            raise RuntimeError(
                f"{type(optimizer).__name__} got a gradient of layout {gradient.layout}; allowed: dense gradients "
                "(torch.optim.SparseAdam takes sparse ones)"
            )


def _combined_scale(gradients: list[torch.Tensor | None], scale: float, norm: Any, max_norm: float) -> Any:
    if max_norm <= 0:
        return scale
    if norm is None:
        norms = [torch.linalg.vector_norm(g, dtype=torch.float32) for g in gradients if g is not None]
        norm = torch.stack(norms).norm().item() if norms else 0.0
    clip = (float(norm) / scale + 1e-6) / max_norm
    return clip * scale if clip > 1 else scale


def _step_one(
    state: dict[str, Any],
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    scale: float,
    group: dict[str, Any],
    eps_inside_sqrt: bool,
) -> None:
    value = parameter.float() if parameter.dtype in HALF_DTYPES else parameter
    exp_avg, exp_avg_sq = buffer(state, "exp_avg", value), buffer(state, "exp_avg_sq", value)
    beta1, beta2 = group["betas"]
    step = state["step"] = int(state.get("step", group.get("step", 0))) + 1
    true = gradient.to(value.dtype) / scale
    exp_avg.mul_(beta1).add_(true, alpha=1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(true, true, value=1 - beta2)
    denominator = exp_avg_sq.add(group["eps"]).sqrt_() if eps_inside_sqrt else exp_avg_sq.sqrt().add_(group["eps"])
    rate = group["lr"]
    if group["bias_correction"]:
        rate = rate * math.sqrt(1 - beta2**step) / (1 - beta1**step)
    value.sub_(rate * (exp_avg / denominator).add_(value, alpha=group["weight_decay"]))
    if value is not parameter:
        parameter.copy_(value)
