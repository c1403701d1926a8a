"""Epsilons whose reciprocal is infinite."""

from __future__ import annotations

import re

from amp_rules.checks.common.number_limits import numbers_of, other_half
from amp_rules.checks.common.zero_guards import guards_of, may_be_zero
from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check


class ReciprocalEps(Check):
    """Epsilons whose reciprocal is infinite in half precision.

    ## What it does
    Finds `1 / (x + eps)` and `(x + eps).reciprocal()` in half where the epsilon is the only guard, is not 0 in the half
    type, and yet too small for its reciprocal.

    ## Why
    The largest float16 is 65504, so 1 / e is infinite for every e below 1.527e-5: `1 / (0 + 1e-6)` is inf, and times 0,
    as in a mean over an empty mask, NaN.

    ## Example
        weight = 1.0 / (distance + 1e-6)

    ## Use instead
        weight = 1.0 / (distance.float() + 1e-6)

    ## When it is silent
    The tensor is float32 or known to be far from 0; under autocast on CUDA `1 / x` runs in float32. An epsilon that is
    0 itself is reported as eps-underflow.

    ## Source
    https://docs.pytorch.org/docs/stable/type_info.html#torch.torch.finfo
    """

    code = "AMP610"
    name = "reciprocal-eps"
    severity = "info"
    message = "The reciprocal of an epsilon is infinite in half precision."
    advice = "Compute the reciprocal in float32, or take an epsilon of at least 2e-5."
    preview = "most such tensors stay away from 0, which the code does not show"
    triggers = (re.compile(r"\b1(?:\.0?)? ?/"), "reciprocal")
    operations = ("div", "reciprocal")

    def applies(self, mode: Mode) -> bool:
        """Only float16 is that narrow."""
        return mode.fp16

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a reciprocal."""
        if len(op.args) < (2 if op.op == "div" else 1):
            return
        over = op.args[0].number if op.op == "div" else 1.0
        divisor = op.args[-1]
        if over is None or not op.low or op.node is None:
            return
        for guard in guards_of(divisor):
            numbers = numbers_of(guard.epsilon)
            overflows = all(
                item > frame.mode.rounds_to_zero and abs(over) / item > frame.mode.largest for item in numbers
            )
            if not numbers or not overflows or not guard.tensor.low or not may_be_zero(guard.tensor, frame.mode):
                continue
            if divisor.op == "sqrt" or other_half(guard.tensor, frame.mode) or not frame.is_tensor(guard.tensor):
                continue
            message = f"`{frame.text(op.node)}` is infinite in fp16 where `{frame.text(guard.tensor.node)}` is 0"
            self.report(frame, op.node, message, culprit=guard.epsilon)
