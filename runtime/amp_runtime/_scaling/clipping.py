"""Clipping of gradients by their true size: ``amp.clip_grad_norm_`` and ``amp.clip_grad_value_``."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import nn

from amp_runtime._core.dtensors import is_sharded, local, whole
from amp_runtime._core.rows import has_rows, table_of
from amp_runtime._distributed import sharding
from amp_runtime._scaling.agreement import Ranks
from amp_runtime._scaling.editing import combined_gradients, make_true
from amp_runtime._scaling.gradients import coalesced_gradients_of, gradients_of, parameters_of, values
from amp_runtime._scaling.scaler import scaler


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> torch.Tensor:
    """Scales gradients down so that their norm, taken over all of them as one vector, is at most ``max_norm``.

    Like ``torch.nn.utils.clip_grad_norm_``, but for gradients as the loss scale leaves them: they are averaged over the
    processes first where that is due (``delay_allreduce``) and unscaled once, in float32 where parameters have masters.
    ``amp.scaler.unscale_`` is called for the optimizers that hold the parameters; it does not matter if the script
    called it before, or clips twice. At O0 it is torch's function. Gradients that overflowed have an infinite or NaN
    norm, and ``amp.scaler.step`` skips the step.

    Pascanu et al., On the difficulty of training recurrent neural networks, https://arxiv.org/abs/1211.5063.

    Args:
        parameters: an optimizer, a model, a tensor, or an iterable of tensors, of any shapes and dtypes. Sparse
            gradients are allowed.
        max_norm: the largest norm allowed, in the unit of the true gradients.
        norm_type: the order p of the norm, positive; ``float("inf")`` is the largest magnitude.
        error_if_nonfinite: raise instead of returning a norm that is infinite or NaN.

    Returns:
        The true norm before clipping, a scalar tensor. Equal on all ranks where the gradients are, and for shards and
        tables whose rows are shared out, of which it is the norm over all ranks: a collective for these.

    Raises:
        TypeError: ``parameters`` is none of these.
        ValueError: ``max_norm`` is negative or NaN, or ``norm_type`` is not positive.
        RuntimeError: the norm is not finite, and ``error_if_nonfinite`` is set; or the parameters are those that a
            model had before it was sharded.
    """
    limit = _checked("clip_grad_norm_", "max_norm", max_norm)
    if _checked("clip_grad_norm_", "norm_type", norm_type) == 0:
        raise ValueError("amp.clip_grad_norm_ got norm_type=0; allowed: a positive number")
    chosen = _parameters("clip_grad_norm_", parameters)
    scaled, unit = make_true(scaler, chosen)
    flat = None if scaled else combined_gradients(scaler, chosen)
    gradients = coalesced_gradients_of(chosen)  # in place: repeated rows would count one by one
    if has_rows(chosen):
        return _clip_with_rows(chosen, scaled, unit, limit, float(norm_type), error_if_nonfinite)
    kinds = set(map(is_sharded, gradients))
    by_torch = len(kinds) < 2 and not (True in kinds and math.isinf(norm_type))
    if not scaled and flat is None and by_torch and not any(gradient.is_sparse for gradient in gradients):
        return whole(nn.utils.clip_grad_norm_(chosen, limit, norm_type, error_if_nonfinite))
    known = {id(parameter) for parameter in scaled}
    true = gradients_of(p for p in chosen if id(p) not in known) if flat is None else flat
    return _clip(true, gradients_of(scaled), unit, limit, float(norm_type), error_if_nonfinite)


def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Brings every element of the gradients into the range from ``-clip_value`` to ``clip_value``.

    Like ``torch.nn.utils.clip_grad_value_``, with what :func:`clip_grad_norm_` does before.

    Args:
        parameters: an optimizer, a model, a tensor, or an iterable of tensors. Sparse gradients are allowed.
        clip_value: the largest magnitude allowed, in the unit of the true gradients.

    Raises:
        TypeError: ``parameters`` is none of these.
        ValueError: ``clip_value`` is negative or NaN.
    """
    limit = _checked("clip_grad_value_", "clip_value", clip_value)
    chosen = _parameters("clip_grad_value_", parameters)
    scaled, unit = make_true(scaler, chosen)
    known = {id(parameter) for parameter in scaled}
    coalesced_gradients_of(chosen)
    with torch.no_grad():
        for parameter in chosen:
            if parameter.grad is not None:
                bound: Any = limit * unit if id(parameter) in known else limit
                values(parameter.grad).clamp_(-bound, bound)


def _clip_with_rows(
    chosen: list[torch.Tensor], scaled: list[torch.Tensor], unit: Any, limit: float, order: float, strict: bool
) -> torch.Tensor:
    """Clips gradients of which some are those of rows of tables, which one rank alone has. A collective."""
    known = {id(parameter) for parameter in scaled}
    own = [parameter for parameter in chosen if table_of(parameter) is not None]
    with torch.no_grad():
        norms = [_norm(p.grad, order) / (unit if id(p) in known else 1) for p in own if p.grad is not None]
        mine = torch.linalg.vector_norm(torch.stack(norms), order) if norms else own[0].new_zeros(())
        if math.isinf(order):  # gloo may lose a NaN among numbers
            of_rows = Ranks().strongest(mine.nan_to_num(math.inf, math.inf).reshape(1))[0]
        else:
            of_rows = Ranks().total(mine.pow(order).reshape(1))[0].pow(1 / order)
    true = gradients_of(p for p in chosen if id(p) not in known)
    whole_ones = {id(p.grad) for p in own}
    return _clip(true, gradients_of(scaled), unit, limit, order, strict, of_rows.to(mine.device), whole_ones)


def _clip(
    true: list[torch.Tensor],
    scaled: list[torch.Tensor],
    unit: Any,
    limit: float,
    order: float,
    error_if_nonfinite: bool,
    counted: torch.Tensor | None = None,
    among: Collection[int] = (),
) -> torch.Tensor:
    """Clips gradients of which some still have the unit of a scaled loss.

    Those ``among`` these identities have been counted, in the true norm ``counted``.
    """
    with torch.no_grad():
        parts = [_norm(gradient, order) for gradient in true if id(gradient) not in among]
        parts += [_norm(gradient, order) / unit for gradient in scaled if id(gradient) not in among]
        parts += [] if counted is None else [counted]
        if not parts:
            return torch.tensor(0.0)
        total: torch.Tensor = torch.linalg.vector_norm(torch.stack([part.to(parts[0].device) for part in parts]), order)
        if error_if_nonfinite and not torch.isfinite(total):
            raise RuntimeError(
                f"amp.clip_grad_norm_ found gradients whose norm of order {order:g} is {total.item()}, with "
                "error_if_nonfinite=True"
            )
        factor = torch.clamp(limit / (total + 1e-6), max=1.0)  # torch's own formula
        for gradient in (*true, *scaled):
            dense = values(gradient)
            dense.mul_(factor.to(dense.device))
    return total


def _norm(gradient: torch.Tensor, order: float) -> torch.Tensor:
    dense = gradient._values() if gradient.is_sparse else gradient
    wide = None if dense.is_complex() or dense.dtype is torch.float64 else torch.float32
    if is_sharded(dense) and math.isinf(order):
        # torch raises on ranks whose shard is empty, and on them alone. gloo may lose a NaN among numbers.
        part = local(dense).float()
        largest = torch.linalg.vector_norm(part, order) if part.numel() else part.new_zeros(())
        return Ranks().strongest(largest.nan_to_num(math.inf, math.inf).reshape(1))[0].to(dense.device)
    return whole(torch.linalg.vector_norm(dense, order, dtype=wide)).float()


def _parameters(function: str, given: Any) -> list[torch.Tensor]:
    chosen = _listed(function, given)
    sharding.refuse_replaced(chosen, f"amp.{function}")
    return chosen


def _listed(function: str, given: Any) -> list[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, nn.Module):
        return list(given.parameters())
    if hasattr(given, "param_groups"):
        return parameters_of(given)
    chosen = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else [given]
    wrong = next((item for item in chosen if not isinstance(item, torch.Tensor)), None)
    if wrong is not None:
        raise TypeError(
            f"amp.{function} got {wrong!r}; allowed: an optimizer, a torch.nn.Module, a tensor, or an iterable of "
            "tensors"
        )
    return chosen


def _checked(function: str, name: str, value: Any) -> float:
    number = float(value)
    if math.isnan(number) or number < 0:
        raise ValueError(f"amp.{function} got {name}={value!r}; allowed: a number that is not negative")
    return number
