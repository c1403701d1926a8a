"""Losses computed in half precision."""

from __future__ import annotations

import ast

from amp_rules.checks.common.arithmetic import is_tensor, likely_half
from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check

_LOSSES = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "cross_entropy", "nll_loss", "kl_div",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "poisson_nll_loss", "gaussian_nll_loss",
)  # fmt: skip


class LowpLoss(Check):
    """Losses computed in half precision.

    ## What it does
    Finds, where the model is half and autocast is off, losses of torch that are given half and sum what they find over
    the whole batch (`reduction="sum"`), and those that a training loop computes of half outputs and differentiates.

    ## Why
    The loss has the type of what it is given. A sum of cross-entropies is infinite in float16 from 65504 on, which
    9000 tokens at a loss of 7.3 reach, and moves in steps of 32 before. `mse_loss` squares, which overflows where a
    prediction is 256 off. The gradient of a mean over N elements is of the size 1/N: over 65536 elements it is 1.5e-5,
    below the smallest normal float16, and over 34 million it is 0. bfloat16 keeps 8 bits of the loss. Autocast
    computes losses in float32 on CUDA.

    ## Example
        loss = F.cross_entropy(logits, targets, reduction="sum")

    ## Use instead
        loss = F.cross_entropy(logits.float(), targets, reduction="sum")

    ## When it is silent
    Under autocast; where what the loss is given was converted to float32; in O2 in losses and in training loops, which
    are given float32 by Apex; for means outside of training loops: whoever calls may have converted the outputs.

    ## Source
    https://github.com/huggingface/diffusers/pull/504 converts both sides before `F.mse_loss`.
    """

    code = "AMP722"
    name = "lowp-loss"
    severity = "warning"
    message = "A loss is computed in half precision."
    advice = "Convert what the loss is given to float32 first."
    triggers = ("loss(", "Loss(", "cross_entropy", "CrossEntropy", "kl_div", "with_logits", "backward(")
    operations = _LOSSES

    def applies(self, mode: Mode) -> bool:
        """Autocast computes losses in float32."""
        return not mode.autocast

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a loss."""
        if not op.args or op.node is None or not likely_half(op, frame) or not is_tensor(op, frame):
            return
        reduction = (op.kwargs or {}).get("reduction")
        text, kind = frame.text(op.node), frame.mode.dtype
        if reduction is not None and reduction.is_const and reduction.const == "sum":
            end = "is infinite from 65504 on" if frame.mode.fp16 else "keeps 8 significant bits"
            self.report(frame, op.node, f"`{text}` is a sum over the whole batch in {kind}, which {end}")
        elif frame.mode.opt_level == "O3" and (reduction is None or reduction.const == "mean") and _trains(frame):
            small = "loses gradients below 6e-8" if frame.mode.fp16 else "keeps 8 significant bits"
            self.report(frame, op.node, f"`{text}` and its gradient are computed in {kind}, which {small}")


def _trains(frame: Frame) -> bool:
    """Whether the function, or the script, computes gradients of a loss itself."""
    nodes = frame.function.nodes if frame.function is not None else ast.walk(frame.module.module.tree)
    return any(
        isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and item.func.attr == "backward"
        for item in nodes
    )
