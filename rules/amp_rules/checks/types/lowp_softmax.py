"""Probabilities in half precision."""

from __future__ import annotations

import ast

from amp_rules.checks.common.arithmetic import in_float32, is_tensor, likely_half, operand, source
from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix


class LowpSoftmax(Check):
    """A softmax rounded to half precision.

    ## What it does
    Finds ``softmax`` of half scores in O2 and O3 without ``dtype=torch.float32``.

    ## Why
    The scores are rounded already, at 1000 to half a unit in float16, and so are the probabilities: float16 makes those
    below 3e-8 0, and the sum of a row of 4096 probabilities of 1/4096 in bfloat16 may differ from 1 by a hundredth. The
    operation accumulates in float32, so attention mostly bears it; routers and distributions that are sampled, compared
    or logarithmized do not.

    ## Example
        weights = F.softmax(scores, dim=-1)

    ## Use instead
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)

    ## When it is silent
    Under autocast on CUDA, which computes softmax in float32; where the scores are converted or ``dtype=`` is given.

    ## Source
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html: ``dtype`` is useful for preventing
    data type overflows.
    """

    code = "AMP706"
    name = "lowp-softmax"
    severity = "info"
    message = "The probabilities of a softmax are rounded to half precision."
    advice = "Give softmax dtype=torch.float32 and convert its result back."
    fix_title = "compute in float32"
    fix_safety = "safe"
    preview = "what it finds is true, but rounded probabilities seldom change what is trained"
    triggers = ("softmax", "Softmax")
    operations = ("softmax",)

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a softmax."""
        if not likely_half(op, frame) or op.node is None or not op.args or not is_tensor(op, frame):
            return
        message = f"`{frame.text(op.node)}` rounds probabilities to {frame.mode.dtype}"
        self.report(frame, op.node, message, fix=_in_float32(op, frame))


def _in_float32(op: Value, frame: Frame) -> Fix | None:
    written = operand(op)
    text = in_float32(frame, op.node) if not op.inplace and not isinstance(op.data, Value) else None
    if text is None or op.node is None or not isinstance(written, (ast.Name, ast.Attribute)):
        return None
    return replacement(frame, "compute in float32", "safe", (op.node, f"{text}.to({source(frame, written)}.dtype)"))
