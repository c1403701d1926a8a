"""Products of exponentials."""

from __future__ import annotations

import ast

from amp_rules.checks.common.arithmetic import (
    bounded_above,
    is_gaussian,
    is_tensor,
    operand,
    runs_in_half,
    source,
    ways,
)
from amp_rules.lattice.abstract_values import Value, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix

_LARGEST_EXPONENT = 80.0


class ProdOfExp(Check):
    """A product or quotient of exponentials, or the logarithm of a product.

    ## What it does
    Finds ``exp(a) * exp(b)``, ``exp(a) / exp(b)``, ``exp(x).prod()`` and ``log(x.prod())``.

    ## Why
    Each exponential overflows or becomes 0 by itself where the result would not: ``exp(a) / exp(b)`` of two
    log-probabilities of -120 is 0/0, NaN, in float32 too, and from -17.4 on in float16, where ``exp(a - b)`` is 1.
    A product of 20 probabilities of 0.5 is below the smallest float16 number that keeps its precision, one of 30 is
    0, and its logarithm ``-inf``.

    ## Example
        ratio = torch.exp(new_logp) / torch.exp(old_logp)

    ## Use instead
        ratio = torch.exp(new_logp - old_logp)

    ## When it is silent
    Maxima were subtracted, the exponents are means, or the arguments are numbers of Python. For products of bells,
    ``exp(-d ** 2)``, that are to vanish far away. Outside of modules and losses.

    ## Source
    https://docs.pytorch.org/docs/stable/generated/torch.logsumexp.html: the computation is stabilized by staying in
    the logarithm.
    """

    code = "AMP719"
    name = "prod-of-exp"
    severity = "warning"
    message = "A product of exponentials overflows or vanishes where the exponential of the sum would not."
    advice = "Add the exponents first, or sum logarithms."
    fix_title = "add the exponents"
    fix_safety = "safe"
    triggers = ("exp(", "prod(")
    operations = ("prod", "mul", "div", "log")

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a product or the logarithm of one."""
        if not op.args or op.node is None or not is_tensor(op, frame):
            return
        text = frame.text(op.node)
        if op.op in ("prod", "log"):
            inner = source_of(op.args[0])
            if op.op == "prod" and inner.args and is_gaussian(inner.args[0]) and bounded_above(inner.args[0], 0.0):
                return
            if inner.op == ("exp" if op.op == "prod" else "prod") and runs_in_half(inner, frame):
                what = "exponentials" if op.op == "prod" else "many factors"
                self.report(frame, op.node, f"`{text}` multiplies {what}, which overflows or vanishes")
        elif len(op.args) == 2:
            a, b = source_of(op.args[0]), source_of(op.args[1])
            if a.op == b.op == "exp" and _is_risky(a) and _is_risky(b) and runs_in_half(a, frame):
                verb = "multiplies" if op.op == "mul" else "divides"
                self.report(
                    frame,
                    op.node,
                    f"`{text}` {verb} exponentials that overflow or vanish each",
                    fix=_joined(op, a, b, frame),
                )


def _is_risky(exp: Value) -> bool:
    given = exp.args[0] if exp.args else None
    if given is None or not given.tensor or bounded_above(given, _LARGEST_EXPONENT):
        return False
    return not all(map(_is_mean, ways(given)))


def _is_mean(value: Value) -> bool:
    """Whether a value is a mean, or a sum that is divided: of log-probabilities, it is no further from 0 than one."""
    if value.op in ("chunk", "split", "getitem", "element") and value.args:
        return _is_mean(source_of(value.args[0]))
    return value.op == "mean" or (value.op == "div" and source_of(value.args[0]).op == "sum")


def _joined(op: Value, a: Value, b: Value, frame: Frame) -> Fix | None:
    node = op.node
    if not isinstance(node, ast.BinOp) or node.left is not a.node or node.right is not b.node or a.inplace or b.inplace:
        return None
    left, right = operand(a), operand(b)
    plain = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
    if not isinstance(left, plain) or not isinstance(right, plain) or a.kwargs or not isinstance(a.node, ast.Call):
        return None
    sign = "+" if op.op == "mul" else "-"
    inner = f"{source(frame, left)} {sign} {source(frame, right)}"
    function = a.node.func
    if not isinstance(function, ast.Attribute):
        return None
    text = f"({inner}).exp()" if function.value is left else f"{source(frame, function)}({inner})"
    return replacement(frame, "add the exponents", "safe", (node, text))
