"""Sums of squares in float16."""

from __future__ import annotations

import ast

from amp_rules.checks.common.arithmetic import (
    CALLS_OF_NORM,
    complement,
    factors,
    is_bounded,
    is_gradient,
    is_tensor,
    likely_half,
    runs_in_half,
    source,
    squared,
    ways,
)
from amp_rules.lattice.abstract_values import PARAMETER, Value, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix

_SUMS = frozenset({"sum", "nansum"})
_NORMS = frozenset({"norm", "vector_norm"})
_LARGEST_ROOT = 255.9


class LowpSquareReduce(Check):
    """Squares taken in float16 and summed.

    ## What it does
    Finds squares of float16 that are summed, as in ``torch.sum(x * x)`` and ``x.square().sum(-1)``, also where the
    square is converted to float32 afterwards, and squares of norms that are float16.

    ## Why
    The square of 256 is 65536, which float16 cannot hold, and the square of 1.7e-4 is 0. The sum of 300 squares of 16
    overflows as well: the length of a vector of 300 numbers is 277 and fits, its square does not. A norm of gradients
    computed so is infinite, or 0, long before the gradients are. Autocast computes ``**``, ``pow``, ``square`` and
    ``sum`` in float32 on CUDA, but not ``x * x``: ``(x * x).sum(-1)`` is float32 there, and infinite all the same. On
    the CPU it computes none of them in float32.

    ## Example
        norm = torch.sum(torch.pow(p.grad, 2)).sqrt()

    ## Use instead
        norm = torch.sum(torch.pow(p.grad.float(), 2)).sqrt()

    ## When it is silent
    In bfloat16, whose range is that of float32. Where ``x`` cannot exceed 255.9, is a weight, or is ``1 - p``. For
    means: those of a normalization are AMP718, those of a loss seldom leave the range. Outside of modules, losses and
    optimizers, where nothing but the mode says that values are half.

    ## Source
    https://github.com/NVIDIA/apex/pull/475 converts gradients to float32 before it squares them.
    """

    code = "AMP701"
    name = "lowp-square-reduce"
    severity = "error"
    message = "Squares are taken in float16, which overflows above 255.9, and summed."
    advice = "Convert to float32 before squaring, or use torch.linalg.vector_norm with dtype=torch.float32."
    fix_title = "square in float32"
    fix_safety = "unsafe"
    triggers = ("sum(", *CALLS_OF_NORM)
    operations = ("sum", "nansum", "pow", "square", "mul")

    def applies(self, mode: Mode) -> bool:
        """Only float16 overflows."""
        return mode.fp16

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a sum, or the square of a norm."""
        if not op.args or op.node is None:
            return
        if op.op in _SUMS:
            self._sum(op, frame)
            return
        x = squared(op)
        norm = source_of(x) if x is not None else None
        if norm is not None and norm.op in _NORMS and norm.args and op.low and _may_be_large(norm.args[0], frame):
            message = f"`{frame.text(op.node)}` is infinite in fp16 where the norm is above 255.9"
            self.report(frame, op.node, message, fix=_cast_first(op, frame))

    def _sum(self, op: Value, frame: Frame) -> None:
        if op.node is None:
            return
        for item in ways(op.args[0]):
            x = squared(item)
            if x is None or not (item.low or (is_gradient(x) and likely_half(item, frame))):
                continue
            if frame.autocast and item.op == "pow" and item.inplace:
                continue  # That ``pow_`` is not cast is a finding of its own (AMP714).
            if _may_be_large(x, frame):
                self.report(frame, op.node, _told(op, item, frame), fix=_cast_first(item, frame))
                return


def _told(op: Value, square: Value, frame: Frame) -> str:
    """What happens to a sum of squares: the sum overflows, or each square does before."""
    text = frame.text(op.node)
    if op.maybe_low:
        return f"`{text}` is infinite in fp16 as soon as the squares add up to 65504"
    if op.args[0].dtypes != square.dtypes:
        return f"`{text}` squares in fp16 what may be above 255.9, and is converted to float32 only afterwards"
    written = frame.text(square.node)
    return f"`{text}` adds in float32 what `{written}` squared in fp16, where 255.9 is the largest that has a square"


def _may_be_large(x: Value, frame: Frame) -> bool:
    """Whether what is squared is an activation that nothing bounds."""
    if is_bounded(x, _LARGEST_ROOT) or x.bits & PARAMETER or _is_complement(x):
        return False
    return is_tensor(x, frame) and runs_in_half(x, frame)


def _is_complement(value: Value) -> bool:
    """Whether it is ``1 - p``, which is small."""
    return any(complement(item) is not None for item in factors(value))


def _cast_first(square: Value, frame: Frame) -> Fix | None:
    """``.float()`` on what is squared, where the text shows it once."""
    node = square.node
    written: ast.expr | None = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        written = node.left
    elif isinstance(node, ast.Call) and square.op in ("pow", "square") and not square.inplace:
        is_method = isinstance(node.func, ast.Attribute) and len(square.args) == len(node.args) + 1
        written = node.func.value if is_method and isinstance(node.func, ast.Attribute) else (*node.args, None)[0]
    if not isinstance(written, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
        return None
    return replacement(frame, "square in float32", "unsafe", (written, f"{source(frame, written)}.float()"))
