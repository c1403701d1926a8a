"""``amp_C``, the operations on lists of tensors behind Apex, on torch's own.

Each takes ``chunk_size`` (which changes nothing here), a ``noop_flag`` (an int32 tensor of one element, set to 1 where
an operation that looks finds a value that is not finite), lists of tensors of one device with one type a list, and its
own numbers, in Apex's order. Arithmetic is float32 at least, whatever the tensors are; results are written into them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from amp_runtime.optim._kernels import adam_, directions, sgd_
from amp_runtime.optim._scratch import Scratch
from amp_runtime.optim.lamb import trust_ratio

Tensors = list[torch.Tensor]
_HALF = (torch.float16, torch.bfloat16)


def multi_tensor_scale(chunk_size: int, noop_flag: torch.Tensor, tensor_lists: list[Tensors], scale: Any) -> None:
    """``out = in * scale`` for lists ``[in, out]``; sets the flag where ``in`` is not finite."""
    sources, targets = tensor_lists
    _look(noop_flag, sources)
    torch._foreach_copy_(targets, torch._foreach_mul(_wide(sources), scale))


def multi_tensor_axpby(
    chunk_size: int, noop_flag: torch.Tensor, tensor_lists: list[Tensors], a: float, b: float, arg_to_check: int
) -> None:
    """``out = a * x + b * y`` for lists ``[x, y, out]``.

    Sets the flag where ``x`` (``arg_to_check`` 0), ``y`` (1) or either (-1) is not finite.
    """
    first, second, targets = tensor_lists
    if arg_to_check in (-1, 0):
        _look(noop_flag, first)
    if arg_to_check in (-1, 1):
        _look(noop_flag, second)
    sums = torch._foreach_mul(_wide(first), a)
    torch._foreach_add_(sums, torch._foreach_mul(_wide(second), b))
    torch._foreach_copy_(targets, sums)


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: torch.Tensor, tensor_lists: list[Tensors], per_tensor: bool | None = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The 2-norm of all tensors of ``[x]`` together, and with ``per_tensor`` that of each.

    Returns:
        A float32 tensor of one element, and one with an element for each tensor, empty without ``per_tensor``. Sets
        the flag where a norm is not finite.
    """
    norms = _norms(tensor_lists[0])
    total = torch.linalg.vector_norm(norms).reshape(1)
    noop_flag.masked_fill_(~torch.isfinite(total).to(noop_flag.device), 1)
    return total, norms if per_tensor else norms.new_empty(0)


def multi_tensor_unscale_l2norm(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: list[Tensors],
    inv_scale: torch.Tensor,
    per_tensor: bool | None = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norms of ``x * inv_scale`` for a list ``[x]``, which stays as it is."""
    scaled = list(torch._foreach_mul(_wide(tensor_lists[0]), inv_scale.reshape(()).to(tensor_lists[0][0].device)))
    return multi_tensor_l2norm(chunk_size, noop_flag, [scaled], per_tensor)


def multi_tensor_sgd(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: list[Tensors],
    wd: float,
    momentum: float,
    dampening: float,
    lr: Any,
    nesterov: bool,
    first_run: bool,
    wd_after_momentum: bool,
    scale: float,
) -> None:
    """SGD for lists ``[g, p, momentum]``, or with half copies of ``p`` as a fourth; nothing where the flag is set.

    Gradients are multiplied by ``scale`` first.
    """
    if noop_flag.item():
        return
    gradients, parameters, velocities, *copies = tensor_lists
    with _widened(parameters, velocities) as (values, moments):
        true = _like(_wide(gradients), values)
        if scale != 1.0:
            true = list(torch._foreach_mul(true, scale))
        sgd_(
            values, true, moments if momentum else [], lr=lr, momentum=momentum, dampening=dampening, weight_decay=wd,
            nesterov=nesterov, first=first_run, decay_last=wd_after_momentum,
        )  # fmt: skip
    for targets in copies:
        torch._foreach_copy_(targets, parameters)


def multi_tensor_adam(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: list[Tensors],
    lr: Any,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: Any,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """Adam (``mode`` 0) or AdamW (1) for lists ``[g, p, exp_avg, exp_avg_sq]``."""
    gradients, parameters, exp_avgs, exp_avg_sqs = tensor_lists
    with _widened(parameters, exp_avgs, exp_avg_sqs) as (values, means, squares):
        adam_(
            values, _like(_wide(gradients), values), means, squares, step, lr=lr, betas=(beta1, beta2), eps=epsilon,
            weight_decay=weight_decay, decoupled=mode == 1, bias_correction=bool(bias_correction),
        )  # fmt: skip


def multi_tensor_adam_capturable(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: list[Tensors],
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: torch.Tensor,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    inv_scale: torch.Tensor,
) -> None:
    """:func:`multi_tensor_adam` of ``g * inv_scale``, which ``g`` becomes; nothing where the flag is set."""
    if noop_flag.item():
        return
    gradients = list(torch._foreach_mul(_wide(tensor_lists[0]), inv_scale.reshape(())))
    torch._foreach_copy_(tensor_lists[0], gradients)
    multi_tensor_adam(
        chunk_size, noop_flag, [gradients, *tensor_lists[1:]], lr.reshape(()), beta1, beta2, epsilon,
        step.reshape(()), mode, bias_correction, weight_decay,
    )  # fmt: skip


def multi_tensor_adam_capturable_master(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: list[Tensors],
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: torch.Tensor,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    inv_scale: torch.Tensor,
) -> None:
    """:func:`multi_tensor_adam_capturable` for lists ``[g, p, exp_avg, exp_avg_sq, master]``, of the masters."""
    gradients, parameters, exp_avgs, exp_avg_sqs, masters = tensor_lists
    if noop_flag.item():
        return
    multi_tensor_adam_capturable(
        chunk_size, noop_flag, [gradients, masters, exp_avgs, exp_avg_sqs], lr, beta1, beta2, epsilon, step, mode,
        bias_correction, weight_decay, inv_scale,
    )  # fmt: skip
    torch._foreach_copy_(parameters, masters)


def multi_tensor_novograd(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: list[Tensors],
    grad_norms: torch.Tensor,
    lr: Any,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    bias_correction: int,
    weight_decay: float,
    grad_averaging: int,
    mode: int,
    norm_type: int,
) -> None:
    """NovoGrad for lists ``[g, p, exp_avg]``; ``grad_norms``, a float32 vector, takes in the gradients' norms.

    ``mode`` 0 divides and decays inside the mean, 1 after it; ``norm_type`` 2 is the 2-norm, 0 the largest element.
    """
    gradients, parameters, exp_avgs = tensor_lists
    fresh = _norms(gradients) if norm_type == 2 else _norms(gradients, math.inf)
    if norm_type == 2:
        grad_norms.copy_((beta2 * grad_norms.square() + (1 - beta2) * fresh.square()).sqrt())
    else:
        grad_norms.copy_(beta2 * grad_norms + (1 - beta2) * fresh)
    correction1 = 1 - beta1**step if bias_correction else 1.0
    correction2 = math.sqrt(1 - beta2**step) if bias_correction else 1.0
    divisors = list((grad_norms / correction2 + epsilon).unbind())
    with _widened(parameters, exp_avgs) as (values, means):
        terms = list(_wide(gradients))
        if mode == 0:
            terms = list(torch._foreach_div(terms, divisors))
            torch._foreach_add_(terms, values, alpha=weight_decay)
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, terms, alpha=1 - beta1 if grad_averaging else 1.0)
        updates = list(torch._foreach_div(means, correction1))
        if mode == 1:
            torch._foreach_div_(updates, divisors)
            torch._foreach_add_(updates, values, alpha=weight_decay)
        torch._foreach_sub_(values, torch._foreach_mul(updates, lr))


def multi_tensor_lamb(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: list[Tensors],
    lr: Any,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: Any,
    bias_correction: int,
    weight_decay: float,
    grad_averaging: int,
    mode: int,
    global_grad_norm: Any,
    max_grad_norm: Any,
    use_nvlamb: bool | None = False,
) -> None:
    """LAMB for lists ``[g, p, exp_avg, exp_avg_sq]``; as in Apex, ``g`` is overwritten with the update.

    Gradients are divided by ``global_grad_norm / max_grad_norm`` where that is above 1. ``mode`` 0 is an L2 penalty,
    1 decays the weights.
    """
    gradients, parameters, exp_avgs, exp_avg_sqs = tensor_lists
    norm = torch.as_tensor(global_grad_norm, device=parameters[0].device, dtype=torch.float32).reshape(())
    divisor = torch.where(norm > max_grad_norm, norm / max_grad_norm, 1.0).reshape(())
    with _widened(parameters, exp_avgs, exp_avg_sqs) as (values, means, squares):
        terms = list(torch._foreach_div(_wide(gradients), divisor))
        if mode == 0 and weight_decay:
            torch._foreach_add_(terms, values, alpha=weight_decay)
        updates = directions(
            _like(terms, values), means, squares, step if bias_correction else math.inf, (beta1, beta2), epsilon,
            1 - beta1 if grad_averaging else 1.0, Scratch(),
        )  # fmt: skip
        if mode == 1 and weight_decay:
            torch._foreach_add_(updates, values, alpha=weight_decay)
        torch._foreach_copy_(gradients, updates)
        rates = [lr] * len(updates)
        if use_nvlamb or weight_decay:
            rates = list((trust_ratio(_norms(values), _norms(updates)) * lr).unbind())
        for value, update, rate in zip(values, updates, rates, strict=True):
            value.sub_(update.mul_(rate))


def multi_tensor_lamb_stage1_cuda(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: list[Tensors],
    per_tensor_decay: torch.Tensor,
    step: int,
    beta1: float,
    beta2: float,
    epsilon: float,
    global_grad_norm: Any,
    max_global_grad_norm: float,
) -> None:
    """The first half of LAMB for lists ``[g, p, exp_avg, exp_avg_sq, update]``: writes the update.

    Gradients are divided by ``global_grad_norm / max_global_grad_norm`` where that is above 1. ``per_tensor_decay``
    holds the weight decay of each tensor; ``step`` counts from 0.
    """
    gradients, parameters, exp_avgs, exp_avg_sqs, updates = tensor_lists
    norm = torch.as_tensor(global_grad_norm, device=parameters[0].device, dtype=torch.float32).reshape(())
    divisor = torch.where(norm > max_global_grad_norm, norm / max_global_grad_norm, 1.0)
    with _widened(parameters, exp_avgs, exp_avg_sqs) as (values, means, squares):
        terms = _like(list(torch._foreach_div(_wide(gradients), divisor)), values)
        betas = (beta1, beta2)
        found = directions(terms, means, squares, step + 1, betas, epsilon, 1 - beta1, Scratch())
        for value, update, decay in zip(values, found, per_tensor_decay.unbind(), strict=True):
            update.add_(value * decay.to(value.dtype))
        torch._foreach_copy_(updates, found)


def multi_tensor_lamb_stage2_cuda(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: list[Tensors],
    per_tensor_param_norm: torch.Tensor,
    per_tensor_update_norm: torch.Tensor,
    lr: float,
    weight_decay: float,
    use_nvlamb: bool | None = False,
) -> None:
    """The second half of LAMB for lists ``[p, update]``: applies the update at each tensor's own rate.

    The rate is ``lr`` times the trust ratio of the two norms, where there is weight decay or ``use_nvlamb``.
    """
    parameters, updates = tensor_lists
    rates: Any = [lr] * len(parameters)
    if use_nvlamb or weight_decay:
        rates = (trust_ratio(per_tensor_param_norm, per_tensor_update_norm) * lr).unbind()
    for parameter, update, rate in zip(parameters, updates, rates, strict=True):
        parameter.sub_((update.float() * rate).to(parameter.dtype))


def update_scale_hysteresis(
    current_scale: torch.Tensor,
    growth_tracker: torch.Tensor,
    hysteresis_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
    hysteresis: int,
) -> torch.Tensor:
    """Updates a loss scale in place that falls only after ``hysteresis`` overflows.

    Args:
        current_scale: float32, of one element.
        growth_tracker: int32: good steps since the scale changed.
        hysteresis_tracker: int32: overflows that are still tolerated.
        found_inf: float32: above 0 after an overflow.
        growth_factor: what the scale is multiplied by after ``growth_interval`` good steps.
        backoff_factor: what it is multiplied by when it falls.
        growth_interval: the number of good steps.
        hysteresis: what the tracker begins with again after a good step.

    Returns:
        ``current_scale``.
    """
    if found_inf.item() > 0:
        hysteresis_tracker.sub_(1)
        growth_tracker.zero_()
        if hysteresis_tracker.item() <= 0:
            current_scale.mul_(backoff_factor)
        return current_scale
    growth_tracker.add_(1)
    if growth_tracker.item() == growth_interval:
        grown = current_scale * growth_factor
        current_scale.copy_(torch.where(torch.isfinite(grown), grown, current_scale))
        growth_tracker.zero_()
    hysteresis_tracker.fill_(hysteresis)
    return current_scale


def _wide(tensors: Tensors) -> Tensors:
    return [tensor.float() if tensor.dtype in _HALF else tensor for tensor in tensors]


def _like(tensors: Tensors, values: Tensors) -> Tensors:
    return [tensor.to(value.dtype) for tensor, value in zip(tensors, values, strict=True)]


def _norms(tensors: Tensors, order: float = 2.0) -> torch.Tensor:
    """A float32 vector of the norms."""
    return torch.stack([torch.linalg.vector_norm(tensor, order, dtype=torch.float32) for tensor in tensors])


def _look(noop_flag: torch.Tensor, tensors: Tensors) -> None:
    largest = torch._foreach_norm([tensor for tensor in tensors if tensor.numel()], math.inf)
    if largest:
        finite = torch.isfinite(torch.stack([value.float() for value in largest])).all()
        noop_flag.masked_fill_(~finite.to(noop_flag.device), 1)


@contextmanager
def _widened(*lists: Tensors) -> Iterator[tuple[Tensors, ...]]:
    """Float32 values of half tensors, rounded back into them afterwards; other tensors themselves."""
    wide = tuple(_wide(tensors) for tensors in lists)
    yield wide
    for tensors, values in zip(lists, wide, strict=True):
        if tensors and values[0] is not tensors[0]:
            torch._foreach_copy_(tensors, values)
