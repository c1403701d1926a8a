"""Sums and norms in half precision."""

from __future__ import annotations

import ast

from amp_rules.evidence.patterns import (
    factors,
    in_float32,
    is_bounded,
    is_loss,
    is_tensor,
    likely_half,
    runs_in_half,
    squared,
    ways,
)
from amp_rules.lint.check import Check
from amp_rules.lint.finding import Fix
from amp_rules.lint.frame import Frame
from amp_rules.lint.mode import Mode
from amp_rules.lint.values import PARAMETER, ZERO_DIM, Value

_UNKNOWN = frozenset({"module", "call", "method", "attr", "name", "param"})
_SUMS = frozenset({"sum", "nansum"})


class LowpReduction(Check):
    """A sum over everything, or a norm of gradients, that half precision cannot hold.

    ## What it does
    Finds ``x.sum()`` over all elements of a half tensor in models and losses, and ``norm`` of half gradients.

    ## Why
    The sum is accumulated in float32 but handed back in half precision: a sum of 70000 ones is infinite in float16,
    one of 2049 is 2048, and one of 257 is 256 in bfloat16. A loss over 512 x 512 pixels is such a sum, and so is the
    number of elements in a mask of floats. Norms of gradients are needed exactly where they are large. ``mean`` divides
    before it rounds, and is safe.

    ## Example
        loss = torch.sum(losses) / batch_size

    ## Use instead
        loss = torch.sum(losses, dtype=torch.float32) / batch_size

    ## When it is silent
    Under autocast on CUDA, which computes sums and norms in float32. Where a dimension is named: rows are seldom long
    enough. Where ``dtype=`` is given, where the tensor may be float32 or whole numbers, outside of modules, losses and
    optimizers, where nothing but the mode says that values are half. For squares, which are AMP701.

    ## Source
    https://docs.pytorch.org/docs/stable/generated/torch.sum.html: ``dtype`` is useful for preventing data type
    overflows.
    """

    code = "AMP702"
    name = "lowp-reduction"
    severity = "warning"
    message = "A sum over all elements, or a norm of gradients, is rounded to half precision."
    advice = "Give it dtype=torch.float32."
    fix_title = "compute in float32"
    fix_safety = "safe"
    triggers = ("sum(", "norm(")
    operations = ("sum", "nansum", "norm", "vector_norm")

    def applies(self, mode: Mode) -> bool:
        """Autocast on CUDA computes sums and norms in float32."""
        return not mode.autocast or mode.device == "cpu"

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a sum or norm."""
        if not op.args or op.node is None or not is_tensor(op.args[0], frame):
            return
        if op.op in _SUMS:
            if op.low:
                self._sum(op, frame)
        elif likely_half(op, frame) and _is_gradient(op.args[0]):
            message = f"`{frame.text(op.node)}` is a norm of gradients in {frame.mode.dtype}"
            frame.report(self, op.node, message, fix=_in_float32(op, frame))

    def _sum(self, op: Value, frame: Frame) -> None:
        given = op.args[0]
        if not op.bits & ZERO_DIM or given.bits & ZERO_DIM or not runs_in_half(given, frame):
            return
        if given.bits & PARAMETER or (not is_loss(frame) and all(item.op in _UNKNOWN for item in ways(given))):
            return
        if is_bounded(given, 0.0) or _is_nothing(given) or any(squared(item) is not None for item in ways(given)):
            return
        assert op.node is not None
        text = frame.text(op.node)
        if frame.mode.fp16:
            message = f"`{text}` of more than a few thousand elements is inexact, then infinite, in fp16"
        else:
            message = f"`{text}` keeps 8 significant bits in bf16"
        frame.report(self, op.node, message, fix=_in_float32(op, frame))


def _is_gradient(value: Value) -> bool:
    return any(item.op == "grad" for item in value.behind(6))


def _is_nothing(value: Value) -> bool:
    """Whether it is ``x[:0]``, ``x * 0`` or so, summed to keep a graph."""
    if any(item.number == 0 for item in factors(value)):
        return True
    for item in value.behind(3):
        for index in item.args[1:] if item.op == "getitem" else ():
            for part in (index, *index.args):
                upper = part.node.upper if isinstance(part.node, ast.Slice) else None
                if isinstance(upper, ast.Constant) and upper.value in (0, 1):
                    return True
    return False


def _in_float32(op: Value, frame: Frame) -> Fix | None:
    text = in_float32(frame, op.node) if not op.inplace else None
    return frame.replace("compute in float32", "safe", (op.node, text)) if text and op.node is not None else None
