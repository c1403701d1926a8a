"""Roots and angles of what rounding pushes out of their domain."""

from __future__ import annotations

import math

from amp_rules.checks.common.arithmetic import (
    CALLS_OF_NORM,
    factors,
    in_training,
    is_tensor,
    likely_half,
    runs_in_half,
    squared,
    terms,
    ways,
)
from amp_rules.lattice.abstract_values import IN_ONE_EXPRESSION, PARAMETER, Value, same, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check

_LENGTHS = frozenset({"norm", "vector_norm"})
_PRODUCTS = frozenset({"matmul", "mm", "bmm", "einsum", "dot", "inner", "mv", "vecdot", "addmm", "baddbmm"})


class HandrolledDistance(Check):
    """A distance, deviation or angle by a formula that rounding takes out of its domain.

    ## What it does
    Finds ``sqrt(a ** 2 + b ** 2 - 2 * a @ b)``, ``sqrt(mean(x ** 2) - mean(x) ** 2)`` and ``sqrt(1 - cosine ** 2)``,
    whose argument nothing keeps from becoming negative, in half precision no epsilon of 1e-5 either, and ``acos`` of a
    cosine that nothing keeps at 1, in half precision also of ``(trace - 1) / 2``, a rotation's. Finds half vectors of a
    model that are divided by their own norm, which nothing keeps from 0: ``x / x.norm(dim=-1, keepdim=True)``.

    ## Why
    The difference of two nearly equal numbers keeps only their rounding errors: for equal rows of length 10 the result
    is anywhere between -0.05 and 0.05 in float16, and -1e-5 in float32. The root of a negative number is NaN, and so
    is ``acos`` of 1.0000001. Autocast computes the product in half precision and the squares in float32, which
    makes the difference negative as often as not. In float16 elements below 3e-8 are 0, and gradients and features
    are often that small: a vector of zeros has no direction, and 0 / 0 is NaN.

    ## Example
        dist = (a.pow(2).sum(-1, keepdim=True) + b.pow(2).sum(-1) - 2 * a @ b.T).sqrt()
        angle = torch.acos((u * v).sum(-1))
        direction = h / h.norm(dim=-1, keepdim=True)

    ## Use instead
        dist = torch.cdist(a, b)
        angle = torch.acos((u * v).sum(-1).clamp(-1 + 1e-6, 1 - 1e-6))
        direction = F.normalize(h.float(), dim=-1).to(h.dtype)

    ## When it is silent
    The argument is clamped, made positive (``relu``, ``abs``, ``maximum``), or masked before the root or ``acos``; only
    a part of the squared mean is taken away (``E[x ** 2] - 0.5 * E[x] ** 2``). Without autocast, angles outside of
    modules and losses, which need not be given half tensors. Norms that are float32, as under autocast on CUDA, and
    those of weights; bfloat16, which has the range of float32.

    ## Source
    https://docs.pytorch.org/docs/stable/generated/torch.cdist.html; https://github.com/pytorch/pytorch/issues/8069
    (``acos`` at and beyond 1).
    """

    code = "AMP717"
    name = "handrolled-distance"
    severity = "error"
    message = "The root, angle or direction is NaN where rounding moves its argument out of the domain."
    advice = "Use torch.cdist or torch.var, or clamp the argument before the root or acos."
    triggers = ("sqrt(", "acos(", "arccos(", "** 0.5", "**0.5", *CALLS_OF_NORM)
    operations = ("sqrt", "pow", "acos", "div", "reciprocal")

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a root, an angle or a quotient."""
        if not op.args or op.node is None:
            return
        if op.op in ("div", "reciprocal"):
            self._direction(op, frame)
            return
        text = frame.text(op.node)
        for item in ways(op.args[0]):
            if op.op == "acos":
                if (_is_cosine(item) or (_is_of_trace(item) and likely_half(item, frame))) and runs_in_half(
                    item, frame
                ):
                    self.report(frame, op.node, f"`{text}` is NaN where rounding makes the cosine more than 1")
                    return
            elif op.op == "sqrt" or (len(op.args) == 2 and op.args[1].number == 0.5):
                if (_cancels(item, frame.mode) or _is_sine(item)) and is_tensor(item, frame):
                    self.report(frame, op.node, f"`{text}` is NaN where rounding makes the difference negative")
                    return

    def _direction(self, op: Value, frame: Frame) -> None:
        """``x / x.norm()`` and ``1 / x.norm()``."""
        given, divisor = (None, op.args[0]) if op.op == "reciprocal" else op.args[:2]
        length = source_of(divisor)
        if length.op == "mul" and all(source_of(item).op in _LENGTHS for item in length.args):
            given, length = None, source_of(length.args[0])  # A cosine.
        if not frame.mode.fp16 or length.op not in _LENGTHS or not length.args:
            return
        if not likely_half(divisor, frame) or not in_training(frame):
            return
        measured = source_of(length.args[0])
        own = given is None or given.number is not None or same(source_of(given), measured)
        if own and not measured.bits & PARAMETER and is_tensor(measured, frame) and op.node is not None:
            what = f"`{frame.text(op.node)}` is NaN or infinite where a vector is zero in fp16"
            self.report(frame, op.node, f"{what}: nothing keeps its norm from 0", severity="warning")


def _is_cosine(value: Value) -> bool:
    """A product of vectors, or what was divided by their lengths afterwards: 1 at most, but for rounding."""
    if value.op in ("cosine_similarity", "linear") or _is_product(value):
        return True
    if value.op == "div" and len(value.args) == 2:
        return _is_product(source_of(value.args[0]))
    return False


def _is_of_trace(value: Value) -> bool:
    """``(trace - 1) / 2``, the cosine of the angle that a matrix rotates by."""
    if value.op not in ("div", "mul") or len(value.args) != 2:
        return False
    halved, factor = value.args if value.args[1].number is not None else value.args[::-1]
    less = source_of(halved)
    if less.op not in ("sub", "add") or len(less.args) != 2 or factor.number != (2 if value.op == "div" else 0.5):
        return False
    return less.args[1].number == (1 if less.op == "sub" else -1)


def _is_sine(value: Value) -> bool:
    """``1 - cos ** 2``."""
    if value.op != "sub" or len(value.args) != 2 or value.args[0].number != 1:
        return False
    cosine = squared(value.args[1])
    return cosine is not None and any(map(_is_cosine, ways(cosine)))


def _cancels(value: Value, mode: Mode) -> bool:
    # An epsilon that is less than what half numbers are rounded by makes up for nothing.
    parts = [(sign, item) for sign, item in terms(value) if not (value.low and _is_lost(item, mode))]
    negative = [item for sign, item in parts if sign < 0]
    positive = [item for sign, item in parts if sign > 0]
    if any(sign * _factor(item) == -2.0 and _is_product(item) for sign, item in parts):
        return any(_is_square(item) for item in positive)
    if len(positive) != 1 or len(negative) != 1 or not _is_variance(positive[0], negative[0]):
        return False
    # Less than the whole square of the mean is taken away: what is left is not small beside its rounding.
    return sum(sign for sign, _ in parts) <= 0


def _is_lost(value: Value, mode: Mode) -> bool:
    return value.number is not None and value.number < mode.ulp_of_one


def _factor(value: Value) -> float:
    """The number that stands in a product of matrices: 2 of ``2 * a @ b``, which Python reads as ``(2 * a) @ b``."""
    given = value.args[:2] if value.op in _PRODUCTS else ()
    return math.prod(part.number for item in given for part in factors(item) if part.number is not None)


def _is_product(value: Value) -> bool:
    return value.op in _PRODUCTS or (value.op == "sum" and bool(value.args) and source_of(value.args[0]).op == "mul")


def _is_square(value: Value) -> bool:
    if value.op == "sum" and value.args:
        return squared(value.args[0]) is not None
    return squared(value) is not None


def _is_variance(positive: Value, negative: Value) -> bool:
    """``E[x ** 2] - E[x] ** 2``, weighted or not."""
    if squared(negative) is None or positive.op not in ("mean", "sum", "div"):
        return False
    return any(squared(item) is not None or _has_twice(item) for item in positive.behind(IN_ONE_EXPRESSION))


def _has_twice(value: Value) -> bool:
    """Whether a tensor is a factor of a product more than once, as in ``w * x * x``."""
    if value.op != "mul":
        return False
    parts = [item for item in factors(value) if item.tensor]
    return any(same(item, other) for index, item in enumerate(parts) for other in parts[:index])
