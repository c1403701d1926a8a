"""Optimizers as their papers and Apex's kernels write them: one tensor at a time, in float64, slow and plain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

Step = Callable[[dict[str, Any], torch.Tensor, torch.Tensor, int], torch.Tensor]


def run(
    step: Step,
    start: list[torch.Tensor],
    gradients: Iterable[list[torch.Tensor | None]],
    clip: float | None = None,
    by_round: bool = False,
) -> list[torch.Tensor]:
    """Applies ``step(state, value, gradient, number)`` to every tensor that has a gradient, round after round.

    ``number`` counts the tensor's own steps, or the rounds ``by_round``. ``clip`` limits the norm of all gradients
    together.
    """
    values = [value.double().clone() for value in start]
    states: list[dict[str, Any]] = [{} for _ in start]
    for count, round_ in enumerate(gradients, 1):
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in round_ if g is not None))
        factor = clip / norm if clip and norm > clip else 1.0
        for index, gradient in enumerate(round_):
            if gradient is not None:
                state = states[index]
                state["step"] = state.get("step", 0) + 1
                number = count if by_round else state["step"]
                values[index] = step(state, values[index], gradient.double() * factor, number)
    return values


def norm(tensor: torch.Tensor) -> float:
    return math.sqrt(float(tensor.square().sum()))


def adam_direction(
    state: dict[str, Any], g: torch.Tensor, number: int, betas: tuple[float, float], eps: float, *,
    bias_correction: bool = True, grad_averaging: bool = True,
) -> torch.Tensor:  # fmt: skip
    b1, b2 = betas
    state["m"] = b1 * state.get("m", 0) + (1 - b1 if grad_averaging else 1) * g
    state["v"] = b2 * state.get("v", 0) + (1 - b2) * g * g
    c1, c2 = (1 - b1**number, 1 - b2**number) if bias_correction else (1, 1)
    return (state["m"] / c1) / ((state["v"] / c2).sqrt() + eps)


def adam(lr: float, betas: tuple[float, float], eps: float, wd: float, decoupled: bool, bias_correction: bool) -> Step:
    def step(state: dict[str, Any], p: torch.Tensor, g: torch.Tensor, number: int) -> torch.Tensor:
        if not decoupled:
            g = g + wd * p
        update = adam_direction(state, g, number, betas, eps, bias_correction=bias_correction)
        return p - lr * (update + (wd * p if decoupled else 0))

    return step


def lamb(
    lr: float, betas: tuple[float, float], eps: float, wd: float, *, bias_correction: bool, adam_w_mode: bool,
    grad_averaging: bool, always_adapt: bool, largest: float = math.inf,
) -> Step:  # fmt: skip
    def step(state: dict[str, Any], p: torch.Tensor, g: torch.Tensor, number: int) -> torch.Tensor:
        if not adam_w_mode:
            g = g + wd * p
        update = adam_direction(
            state, g, number, betas, eps, bias_correction=bias_correction, grad_averaging=grad_averaging
        )
        if adam_w_mode:
            update = update + wd * p
        ratio = 1.0
        if (wd or always_adapt) and norm(p) > 0 and norm(update) > 0:
            ratio = min(norm(p), largest) / norm(update)
        return p - lr * ratio * update

    return step


def novograd(
    lr: float, betas: tuple[float, float], eps: float, wd: float, *, grad_averaging: bool, bias_correction: bool,
    reg_inside_moment: bool, init_zero: bool, norm_type: int,
) -> Step:  # fmt: skip
    b1, b2 = betas

    def step(state: dict[str, Any], p: torch.Tensor, g: torch.Tensor, number: int) -> torch.Tensor:
        now = norm(g) if norm_type == 2 else float(g.abs().max())
        old = state.get("n", 0.0 if init_zero else now)
        state["n"] = math.sqrt(b2 * old**2 + (1 - b2) * now**2) if norm_type == 2 else b2 * old + (1 - b2) * now
        c1, c2 = (1 - b1**number, math.sqrt(1 - b2**number)) if bias_correction else (1, 1)
        divisor = state["n"] / c2 + eps
        weight = 1 - b1 if grad_averaging else 1
        term = g / divisor + wd * p if reg_inside_moment else g
        state["m"] = b1 * state.get("m", 0) + weight * term
        update = state["m"] / c1
        if not reg_inside_moment:
            update = update / divisor + wd * p
        return p - lr * update

    return step


def lars(lr: float, momentum: float, wd: float, trust: float, eps: float, nesterov: bool, adapt: bool) -> Step:
    def step(state: dict[str, Any], p: torch.Tensor, g: torch.Tensor, number: int) -> torch.Tensor:
        ratio = 1.0
        if adapt and norm(p) > 0 and norm(g) > 0:
            ratio = trust * norm(p) / (norm(g) + wd * norm(p) + eps)
        update = lr * ratio * (g + wd * p)
        state["v"] = momentum * state.get("v", 0) + update
        return p - (update + momentum * state["v"] if nesterov else state["v"])

    return step


def larc_sgd(lr: float, momentum: float, wd: float, trust: float, eps: float, clip: bool) -> Step:
    def step(state: dict[str, Any], p: torch.Tensor, g: torch.Tensor, number: int) -> torch.Tensor:
        if norm(p) > 0 and norm(g) > 0:
            rate = trust * norm(p) / (norm(g) + norm(p) * wd + eps)
            g = (g + wd * p) * (min(rate / lr, 1.0) if clip else rate)
        state["v"] = momentum * state["v"] + g if "v" in state else g
        return p - lr * state["v"]

    return step


def sgd(lr: float, momentum: float, dampening: float, wd: float, nesterov: bool, wd_after: bool) -> Step:
    def step(state: dict[str, Any], p: torch.Tensor, g: torch.Tensor, number: int) -> torch.Tensor:
        if not wd_after:
            g = g + wd * p
        if momentum:
            state["v"] = momentum * state["v"] + (1 - dampening) * g if "v" in state else g
            g = g + momentum * state["v"] if nesterov else state["v"]
        if wd_after:
            g = g + wd * p
        return p - lr * g

    return step


def adagrad(lr: float, eps: float, wd: float, decoupled: bool) -> Step:
    def step(state: dict[str, Any], p: torch.Tensor, g: torch.Tensor, number: int) -> torch.Tensor:
        if not decoupled:
            g = g + wd * p
        state["h"] = state.get("h", 0) + g * g
        return p - lr * (g / (state["h"].sqrt() + eps) + (wd * p if decoupled else 0))

    return step


def old_adam(
    lr: float, betas: tuple[float, float], eps: float, wd: float, *, bias_correction: bool, eps_inside_sqrt: bool
) -> Step:
    b1, b2 = betas

    def step(state: dict[str, Any], p: torch.Tensor, g: torch.Tensor, number: int) -> torch.Tensor:
        state["m"] = b1 * state.get("m", 0) + (1 - b1) * g
        state["v"] = b2 * state.get("v", 0) + (1 - b2) * g * g
        root = (state["v"] + eps).sqrt() if eps_inside_sqrt else state["v"].sqrt() + eps
        rate = lr * math.sqrt(1 - b2**number) / (1 - b1**number) if bias_correction else lr
        return p - rate * (state["m"] / root + wd * p)

    return step


def adamp(lr: float, betas: tuple[float, float], eps: float, wd: float, delta: float, wd_ratio: float,
          nesterov: bool) -> Step:  # fmt: skip
    b1, b2 = betas

    def step(state: dict[str, Any], p: torch.Tensor, g: torch.Tensor, number: int) -> torch.Tensor:
        state["m"] = b1 * state.get("m", 0) + (1 - b1) * g
        state["v"] = b2 * state.get("v", 0) + (1 - b2) * g * g
        root = (state["v"] / (1 - b2**number)).sqrt() + eps
        update = (b1 * state["m"] + (1 - b1) * g if nesterov else state["m"]) / root
        ratio = 1.0
        if p.dim() > 1:
            for rows in ([[i] for i in range(len(p))], [list(range(len(p)))]):
                size = p[0].numel() * len(rows[0])
                cosines = [abs(float((p[r] * g[r]).sum())) / (norm(p[r]) + eps) / (norm(g[r]) + eps) for r in rows]
                if max(cosines) < delta / math.sqrt(size):
                    update = update.clone()
                    for r in rows:
                        unit = p[r] / (norm(p[r]) + eps)
                        update[r] = update[r] - unit * float((unit * update[r]).sum())
                    ratio = wd_ratio
                    break
        p = p * (1 - lr * wd * ratio)
        return p - lr / (1 - b1**number) * update

    return step


def rmsprop_tf(lr: float, alpha: float, eps: float, wd: float, momentum: float, centered: bool, decoupled: bool,
               lr_in_momentum: bool) -> Step:  # fmt: skip
    def step(state: dict[str, Any], p: torch.Tensor, g: torch.Tensor, number: int) -> torch.Tensor:
        if decoupled:
            p = p * (1 - wd)
        else:
            g = g + wd * p
        square = state["s"] = alpha * state.get("s", torch.ones_like(p)) + (1 - alpha) * g * g
        if centered:
            state["a"] = alpha * state.get("a", 0) + (1 - alpha) * g
            square = square - state["a"] ** 2
        change = g / (square + eps).sqrt()
        if not momentum:
            return p - lr * change
        state["v"] = momentum * state.get("v", 0) + (lr * change if lr_in_momentum else change)
        return p - (state["v"] if lr_in_momentum else lr * state["v"])

    return step
