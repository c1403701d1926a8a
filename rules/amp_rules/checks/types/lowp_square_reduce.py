"""Sums of squares in float16."""

from __future__ import annotations

import ast

from amp_rules.checks.common.arithmetic import (
    complement,
    factors,
    is_bounded,
    is_gradient,
    is_tensor,
    likely_half,
    runs_in_half,
    source,
    squared,
    unguarded,
    ways,
)
from amp_rules.lattice.abstract_values import PARAMETER, ZERO_DIM, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix

_SUMS = frozenset({"sum", "nansum"})
_LARGEST_ROOT = 255.9


class LowpSquareReduce(Check):
    """Squares taken in float16 and summed.

    ## What it does
    Finds squares of float16 that are summed over everything, as in ``torch.sum(x * x)``, and roots of sums of squares,
    as in ``x.square().sum(-1).sqrt()``, also where the square is converted to float32 afterwards.

    ## Why
    The square of 256 is 65536, which float16 cannot hold, and the square of 1.7e-4 is 0. The sum of 300 squares of 16
    overflows as well. A norm of gradients computed so is infinite, or 0, long before the gradients are. Autocast
    computes ``**``, ``pow`` and ``square`` in float32 on CUDA, but not ``x * x``, and none of them on the CPU.

    ## Example
        norm = torch.sum(torch.pow(p.grad, 2)).sqrt()

    ## Use instead
        norm = torch.sum(torch.pow(p.grad.float(), 2)).sqrt()

    ## When it is silent
    In bfloat16, whose range is that of float32. Where ``x`` cannot exceed 255.9, is a weight, or is ``1 - p``. For
    sums over a dimension without a root, which do not fit in float16 either, and for means: those of a normalization
    are AMP718, those of a loss seldom leave the range. Outside of modules, losses and optimizers,
    where nothing but the mode says that values are half.

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
    triggers = ("sum(",)
    operations = ("sum", "nansum", "sqrt", "rsqrt", "pow")

    def applies(self, mode: Mode) -> bool:
        """Only float16 overflows."""
        return mode.fp16

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a sum over everything, or the root of a sum."""
        if not op.args or op.node is None:
            return
        if op.op in _SUMS:
            if op.bits & ZERO_DIM or frame.function is None or _is_optimizer(frame):
                self._sum(op, op, frame)
        elif op.op != "pow" or (len(op.args) == 2 and op.args[1].number in (0.5, -0.5)):
            for item in ways(op.args[0]):
                total, _ = unguarded(item)
                if total.op in _SUMS and not total.bits & ZERO_DIM and not _is_optimizer(frame):
                    self._sum(op, total, frame)

    def _sum(self, op: Value, total: Value, frame: Frame) -> None:
        if not total.args or op.node is None:
            return
        for item in ways(total.args[0]):
            x = squared(item)
            if x is None or not (item.low or (is_gradient(x) and likely_half(item, frame))):
                continue
            if is_bounded(x, _LARGEST_ROOT) or x.bits & PARAMETER or _is_complement(x):
                continue
            if not is_tensor(x, frame) or not runs_in_half(x, frame):
                continue
            late = ", which is converted to float32 only afterwards" if total.args[0].dtypes != item.dtypes else ""
            message = f"`{frame.text(op.node)}` squares in fp16 what may be above 255.9{late}"
            self.report(frame, op.node, message, fix=_cast_first(item, frame))
            return


def _is_complement(value: Value) -> bool:
    """Whether it is ``1 - p``, which is small."""
    return any(complement(item) is not None for item in factors(value))


def _is_optimizer(frame: Frame) -> bool:
    cls = frame.function.cls if frame.function else None
    return cls is not None and cls.is_optimizer


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
