"""Epsilons that are 0 in half precision."""

from __future__ import annotations

import ast

from amp_rules.checks.common.arithmetic import complement, is_tensor, unguarded, ways
from amp_rules.checks.common.number_limits import described, origin, other_half, vanishes
from amp_rules.checks.common.zero_guards import EPSILON_USED, SINGULAR, Guard, guards_of, may_be_zero, singular_argument
from amp_rules.lattice.abstract_values import Value, same
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix


class EpsUnderflow(Check):
    """Epsilons that are 0 in half precision.

    ## What it does
    Finds `x + eps`, `x.clamp(min=eps)`, `torch.maximum(x, eps)`, `torch.where(x > 0, x, eps)` where the number becomes
    0 in the half type, `x` is half, and the result divides, or goes into `log`, `sqrt`, `rsqrt` or `reciprocal`; and
    `x[x == 0] = eps`. The number may be spread, as in `torch.max(x, eps * torch.ones_like(x))`. It is followed through
    defaults, `self.eps`, constants and imports, and the finding stands where it is written.

    ## Why
    The smallest positive float16 is 5.96e-8, and whatever is not above 2.98e-8 rounds to 0: with 1e-8 a divisor of 0
    stays 0 and 0 / 0 is NaN, `log(0 + 1e-8)` is -inf, the gradient of `sqrt(0 + 1e-8)` is infinite. 1e-7 survives as
    1.19e-7. bfloat16 has the exponents of float32, there only numbers below 4.6e-41 vanish.

    ## Example
        norm = x.norm(dim=-1, keepdim=True)
        return x / (norm + 1e-8)

    ## Use instead
        norm = x.float().norm(dim=-1, keepdim=True)
        return (x / (norm + 1e-8)).to(x.dtype)

    ## When it is silent
    The guarded tensor is float32: made by `.float()`, by a sum of integers or a mask, or under autocast by one of the
    operations that run in float32 (`norm`, `sum`, `exp`, `softmax`). The tensor is known to be far from 0, or is
    made of weights alone. Every call of the function in its file passes float32, or another epsilon. The number is the
    epsilon of a norm layer, which works in float32, or of an optimizer. Logarithms of a sigmoid are AMP705.

    ## Source
    https://github.com/pytorch/pytorch/issues/32137
    """

    code = "AMP605"
    name = "eps-underflow"
    severity = "error"
    message = "An epsilon that keeps a divisor, logarithm or root from zero is zero itself in half precision."
    advice = "Compute this in float32, or take an epsilon of at least 1e-7."
    fix_title = "Take an epsilon that half precision holds"
    fix_safety = "unsafe"
    triggers = (
        "1e-08", "e-8", "E-", "e-9", "e-08", "e-09", "e-1", "e-2", "e-3", "e-4", EPSILON_USED, "min=eps",
        "min=self.eps", "min = eps", "min = self.eps", "EPS", ".tiny", "TINY", "SMALL", ".0000000",
    )  # fmt: skip
    operations = (*SINGULAR, "setitem")

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge what must not be zero."""
        if op.op == "setitem":
            self._written(op, frame)
            return
        argument = singular_argument(op)
        if argument is None or not argument.tensor or (op.op.startswith("log") and _is_of_sigmoid(argument)):
            return
        for guard in guards_of(argument):
            number = vanishes(guard.epsilon, frame.mode)
            if number is not None and self._is_half(guard, frame) and may_be_zero(guard.tensor, frame.mode):
                self._report(op, guard, number, frame)

    def _written(self, op: Value, frame: Frame) -> None:
        """``x[x == 0] = eps``."""
        tensor, index, epsilon = op.args
        number = vanishes(epsilon, frame.mode)
        zeros = index.op in ("eq", "le") and same(index.args[0], tensor) and index.args[1].number == 0
        if number is None or not zeros or not tensor.low or op.node is None:
            return
        if is_tensor(tensor, frame) and not other_half(tensor, frame.mode):
            written = described(frame, epsilon.node, number)
            message = f"{written} is 0 in {frame.mode.dtype}, so `{frame.text(op.node)}` stays 0"
            self.report(frame, op.node, message, culprit=epsilon)

    def _is_half(self, guard: Guard, frame: Frame) -> bool:
        tensor = guard.tensor
        return tensor.low and is_tensor(tensor, frame) and not other_half(tensor, frame.mode)

    def _report(self, op: Value, guard: Guard, number: float, frame: Frame) -> None:
        node, epsilon = guard.op.node, guard.epsilon
        if node is None or op.node is None:
            return
        place = origin(frame, epsilon, node)
        text = epsilon.node if place is epsilon.node and not isinstance(place, ast.arg) else None
        written = described(frame, text, number) if text is not None else f"{number:g}"
        role = "divisor" if op.op in ("div", "pow", "reciprocal") else f"argument of `{op.op}`"
        message = f"{written} is 0 in {frame.mode.dtype} and does not keep the {role} `{frame.text(node)}` from 0"
        self.report(frame, place, message, culprit=epsilon, fix=self._fix(place, frame))

    def _fix(self, place: ast.AST, frame: Frame) -> Fix | None:
        if isinstance(place, ast.Constant) and frame.mode.fp16:
            return replacement(frame, self.fix_title, "unsafe", (place, "1e-6"))
        return None


def _is_of_sigmoid(value: Value) -> bool:
    """Whether it is a sigmoid or its complement, guarded on the outside or inside: AMP705 says more about those."""
    for inner in ways(value):
        plain, _ = unguarded(inner)
        other = complement(plain)
        for held in ways(other if other is not None else plain):
            if any(item.op == "sigmoid" for item in ways(unguarded(held)[0])):
                return True
    return False
