"""Logarithms of a sigmoid."""

from __future__ import annotations

import ast

from amp_rules.checks.common.arithmetic import (
    bounded_above,
    complement,
    is_ordered,
    is_tensor,
    operand,
    source,
    spelled,
    unguarded,
    ways,
)
from amp_rules.lattice.abstract_values import Value, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.intervals import clamp_bounds
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix

_LARGEST_EXPONENT = 80.0


class HandrolledBce(Check):
    """A logarithm of a sigmoid, as in binary cross-entropy by hand.

    ## What it does
    Finds ``log(sigmoid(x))`` and ``log(1 - sigmoid(x))``, also over several statements and with an epsilon that half
    precision rounds away, and ``log(1 + exp(x))``.

    ## Why
    ``sigmoid`` is on no list of autocast, so it keeps the half type of its input. In float16 ``sigmoid(9.)`` is 1
    exactly, in bfloat16 ``sigmoid(7.)`` is, and ``1 - 1 + 1e-8`` is 0 in float16: the logarithm is ``-inf``, and its
    gradient NaN. Below -17.4 ``sigmoid`` is 0 in float16. Float32 only moves the limits to 17 and -104.
    ``exp(x)`` in ``log(1 + exp(x))`` is infinite above 11.09 in float16 and above 88.7 in float32.

    ## Example
        p = torch.sigmoid(x)
        loss = -(t * torch.log(p + 1e-8) + (1 - t) * torch.log(1 - p + 1e-8))

    ## Use instead
        loss = -(t * F.logsigmoid(x) + (1 - t) * F.logsigmoid(-x))

    ## When it is silent
    The probability was clamped or moved by an epsilon that the type can hold, so that the logarithm is finite; the
    argument of ``exp`` is never positive, by what it is or by the test or the mask around it.

    ## Source
    https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html: combining the sigmoid and the loss
    is more numerically stable.
    """

    code = "AMP705"
    name = "handrolled-bce"
    severity = "error"
    message = "The logarithm of a sigmoid is -inf where the sigmoid rounds to 0 or 1."
    advice = "Use F.logsigmoid(x) and F.logsigmoid(-x), or binary_cross_entropy_with_logits."
    fix_title = "use logsigmoid"
    fix_safety = "safe"
    triggers = ("sigmoid", "Sigmoid", "log1p(", "exp(", ".log(")
    operations = ("log", "log2", "log10", "log1p")

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a logarithm."""
        if not op.args or op.node is None:
            return
        for inner in ways(op.args[0]):
            if self._of_sigmoid(op, inner, frame) or self._of_exp(op, inner, frame):
                return

    def _of_sigmoid(self, op: Value, inner: Value, frame: Frame) -> bool:
        plain, epsilon = unguarded(inner)
        other = _negated(plain) if op.op == "log1p" else complement(plain)
        for held in ways(other if other is not None else plain):
            clamped, least = unguarded(held)
            for sigmoid in ways(clamped):
                if sigmoid.op != "sigmoid":
                    continue
                if _is_finite(sigmoid, held, least, epsilon, other is not None, frame):
                    return False
                text = frame.text(op.node)
                where = "1" if other is not None else "0"
                lost = f" and {frame.mode.dtype} loses its epsilon" if epsilon is not None or least is not None else ""
                message = f"`{text}` is -inf where the sigmoid rounds to {where}{lost}"
                fix = _logsigmoid(op, sigmoid, other is not None, frame) if not lost else None
                self.report(frame, op.node, message, fix=fix)  # type: ignore[arg-type]
                return True
        return False

    def _of_exp(self, op: Value, inner: Value, frame: Frame) -> bool:
        """``log(1 + exp(x))``."""
        exp = inner if op.op == "log1p" else None
        if op.op == "log" and inner.op == "add" and len(inner.args) == 2:
            exp = next((b for a, b in (inner.args, inner.args[::-1]) if a.number == 1.0), None)
        exp = source_of(exp) if exp is not None else None
        if exp is None or exp.op != "exp" or not exp.args or bounded_above(exp.args[0], _LARGEST_EXPONENT):
            return False
        if not is_tensor(exp, frame) or is_ordered(exp.args[0], frame):
            return False
        message = f"`{frame.text(op.node)}` is a softplus that overflows"
        advice = "Use torch.nn.functional.softplus(x)."
        self.report(frame, op.node, message, fix=_softplus(op, exp, frame), advice=advice)  # type: ignore[arg-type]
        return True


def _negated(value: Value) -> Value | None:
    return value.args[0] if value.op == "neg" and value.args else None


def _is_finite(
    sigmoid: Value, held: Value, least: Value | None, epsilon: Value | None, upper: bool, frame: Frame
) -> bool:
    """Whether an epsilon keeps the argument of the logarithm above 0, or may do so."""
    lost = frame.mode.rounds_to_zero if sigmoid.maybe_low else 1e-45
    if epsilon is not None and (epsilon.number is None or epsilon.number > lost):
        return True
    if not upper:
        return least is not None and (least.number is None or least.number > lost)
    if source_of(held).op not in ("clamp", "clamp_max"):
        return False
    _, most = clamp_bounds(source_of(held))
    if most is None:
        return False
    ulp = frame.mode.ulp_of_one if sigmoid.maybe_low else 2.0**-25
    return most.number is None or 1.0 - most.number >= ulp


# ---- fixes -------------------------------------------------------------------------------------------------------


def _logsigmoid(op: Value, sigmoid: Value, negative: bool, frame: Frame) -> Fix | None:
    node, written, name = operand(op), operand(sigmoid), spelled(frame, "torch.nn.functional.logsigmoid")
    if negative and isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant) and node.left.value == 1:
        node = node.right
    elif negative:
        return None
    if op.op != "log" or op.inplace or node is not sigmoid.node or written is None or name is None or op.node is None:
        return None
    text = source(frame, written)
    if negative:
        text = f"-{text}" if isinstance(written, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) else f"-({text})"
    return replacement(frame, "use logsigmoid", "safe", (op.node, f"{name}({text})"))


def _softplus(op: Value, exp: Value, frame: Frame) -> Fix | None:
    node, written, name = operand(op), operand(exp), spelled(frame, "torch.nn.functional.softplus")
    if isinstance(node, ast.BinOp):
        node = node.right if isinstance(node.left, ast.Constant) else node.left
    if op.inplace or node is not exp.node or written is None or name is None or op.node is None:
        return None
    return replacement(frame, "use softplus", "safe", (op.node, f"{name}({source(frame, written)})"))
