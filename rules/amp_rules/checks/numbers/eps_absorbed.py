"""Epsilons that vanish beside one."""

from __future__ import annotations

from amp_rules.checks.common.arithmetic import without_gradient
from amp_rules.checks.common.number_limits import numbers_of, other_half
from amp_rules.checks.common.zero_guards import EPSILON_USED
from amp_rules.lattice.abstract_values import PASSING, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.intervals import clamp_bounds
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check

_FINITE_AT_ONE = frozenset({"acos", "asin"})
"""Of these the gradient alone is infinite."""
_AT_ONE = _FINITE_AT_ONE | {"atanh", "arctanh", "erfinv"}


class EpsAbsorbed(Check):
    """Epsilons that vanish beside one in half precision.

    ## What it does
    Finds half tensors that are clamped to a bound so close to 1 that it is 1 in the half type (`1 - 1e-7`), where the
    result goes into `log(1 - x)`, `log1p(-x)`, `1 / (1 - x)`, `acos`, `atanh` or the like; `torch.logit(x, eps=...)`
    with such an epsilon; and divisors of the form `(1 + eps) - x`.

    ## Why
    The float16 below 1 is 0.99951, the bfloat16 0.99609: `1 - 1e-4` is 1 in float16 and `1 - 1e-3` is 1 in bfloat16, so
    the clamp lets 1 through, `log(1 - x)` is -inf and the gradient of `acos` infinite.

    ## Example
        p = p.clamp(1e-6, 1 - 1e-6)
        loss = -torch.log(1 - p)

    ## Use instead
        p = p.float().clamp(1e-6, 1 - 1e-6)
        loss = -torch.log(1 - p)

    ## When it is silent
    The tensor is float32 or only may be half, or the bound is one that the type can hold. `acos` and `asin` where no
    gradient is computed.

    ## Source
    https://docs.pytorch.org/docs/stable/type_info.html#torch.torch.finfo
    """

    code = "AMP607"
    name = "eps-absorbed"
    severity = "error"
    message = "A bound just below one is one in half precision."
    advice = "Compute this in float32, or use a function that takes logits."
    triggers = (" - 1e-", " + 1e-", "-1e-", "- 5e-", ".999", EPSILON_USED, "EPS", "logit(")
    operations = ("log", "log2", "log10", "log1p", "div", "reciprocal", "rsqrt", "logit", *sorted(_AT_ONE))

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge an operation that one, or the rest to one, must not reach."""
        if not op.args or op.node is None or (op.op in _FINITE_AT_ONE and without_gradient(frame)):
            return
        if op.op == "logit":
            self._logit(op, frame)
            return
        if op.op == "div" and len(op.args) < 2:
            return
        argument = op.args[1 if op.op == "div" else 0]
        if op.op == "log1p":
            argument = argument.through(PASSING)
            if argument.op != "neg":
                return
            argument = argument.args[0]
        elif op.op not in _AT_ONE:
            argument = argument.through(PASSING)
            if argument.op != "sub":
                return
            start = argument.args[0]
            if numbers_of(start) and numbers_of(start)[0] != 1:
                self._rest(op, argument, frame)
                return
            if start.number != 1:
                return
            argument = argument.args[1]
        self._clamped(op, argument.through(PASSING - {"float", "to", "double"}), frame)

    def _clamped(self, op: Value, clamp: Value, frame: Frame) -> None:
        """``log(1 - clamp(x, e, 1 - e))``."""
        if clamp.op not in ("clamp", "clamp_max") or clamp.node is None or not _is_half(clamp.args[0], frame):
            return
        _, bound = clamp_bounds(clamp)
        if bound is not None and lets_one_in(clamp, frame.mode):
            self._absorbed(op, clamp, bound, numbers_of(bound)[0], frame)

    def _absorbed(self, op: Value, clamp: Value, bound: Value, number: float, frame: Frame) -> None:
        """Report a clamp whose bound lets one into an operation."""
        assert clamp.node is not None
        text = frame.text(clamp.node)
        message = f"the bound {number!r} is 1 in {frame.mode.dtype}: `{text}` lets 1 into `{op.op}`"
        self.report(frame, clamp.node, message, culprit=bound)

    def _rest(self, op: Value, rest: Value, frame: Frame) -> None:
        """``x / ((1 + eps) - y)``."""
        numbers = numbers_of(rest.args[0])
        if (
            all(_is_one(item, frame.mode) for item in numbers)
            and _is_half(rest.args[1], frame)
            and rest.node is not None
        ):
            message = f"`{frame.text(rest.node)}` can be 0 in {frame.mode.dtype}, in which {numbers[0]!r} is 1"
            self.report(frame, rest.node, message, culprit=rest.args[0])

    def _logit(self, op: Value, frame: Frame) -> None:
        given = op.arg(1, "eps")
        numbers = numbers_of(given)
        if numbers and all(item > 0 and _is_one(1 - item, frame.mode) for item in numbers) and op.node is not None:
            if _is_half(op.args[0], frame):
                self._infinite(op, given, 1 - numbers[0], frame)

    def _infinite(self, op: Value, given: Value | None, number: float, frame: Frame) -> None:
        """Report a ``logit`` whose epsilon does not keep one from it."""
        assert op.node is not None
        message = f"`{frame.text(op.node)}` is infinite at 1: {number!r} is 1 in {frame.mode.dtype}"
        self.report(frame, op.node, message, culprit=given)


def lets_one_in(clamp: Value, mode: Mode) -> bool:
    """Whether the upper bound of a clamp is below one, and is 1 in the half type."""
    _, bound = clamp_bounds(clamp)
    numbers = numbers_of(bound)
    return bool(numbers) and all(_is_one(item, mode) and item < 1 for item in numbers)


def _is_half(value: Value, frame: Frame) -> bool:
    return value.low and frame.is_tensor(value) and not other_half(value, frame.mode)


def _is_one(number: float, mode: Mode) -> bool:
    """Whether a number is 1 in the half type, but not in Python."""
    return 1 - mode.ulp_of_one <= number < 1 or 1 < number <= 1 + 2 * mode.ulp_of_one
