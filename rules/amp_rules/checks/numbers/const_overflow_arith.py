"""Arithmetic with numbers outside of the range of half precision."""

from __future__ import annotations

import re

from amp_rules.checks.common.arithmetic import is_tensor
from amp_rules.checks.common.number_limits import half_where_float, is_limit, other_half, too_large
from amp_rules.lattice.abstract_values import BOOL, Value, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check
from amp_rules.torch.idioms import MASK


class ConstOverflowArith(Check):
    """Arithmetic with numbers that half precision cannot hold.

    ## What it does
    Finds `x + c` and `x - c` where the number is outside of the range of the half type and `x` is half, and
    `(1 - mask) * c` where the mask was converted to half, or is by what one call of the function gives, and
    `c * torch.ones_like(x)`.

    ## Why
    A Python number does not widen a tensor: `half - 1e9` stays float16, whose largest number is 65504, and is -inf
    without a word; so is `(1 - mask) * -1e9` wherever the mask is 0. Added to the scores it gives rows of -inf, whose
    softmax is NaN. With a mask of booleans or integers the product is float32 and right.

    ## Example
        mask = mask.to(scores.dtype).half()
        bias = (1.0 - mask) * -1e9

    ## Use instead
        bias = torch.zeros_like(scores).masked_fill(mask == 0, torch.finfo(scores.dtype).min)

    ## When it is silent
    The tensor is float32, holds integers or booleans, or only may be half; a whole number is added to an argument,
    which may hold identifiers. Other products with a large number are not
    looked at: whether they overflow depends on the tensor.

    ## Source
    https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
    """

    code = "AMP602"
    name = "const-overflow-arith"
    severity = "error"
    message = "A half tensor is combined with a number that half precision cannot hold."
    advice = "Use masked_fill with `torch.finfo(x.dtype).min`, a smaller number, or float32."
    triggers = (
        "1e5", "1e6", "1e7", "1e8", "1e9", "1E", "1e1", "1e2", "1e3", "0000.", "00000", "INF", "NEG", "LARGE", "BIG",
        "neg_", "(1 - ", "(1.0 - ", "(1. - ", "(1-", "(1.0-", "ones_like(",
        re.compile(r"99999(?<![.\d]99999)"),
    )  # fmt: skip
    operations = ("add", "sub", "mul")

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a sum, a difference or a product."""
        if len(op.args) < 2:
            return
        for tensor, given in (op.args[:2], op.args[1::-1]):
            number = too_large(given, frame.mode) if not given.tensor else None
            if number is None or is_limit(given) or other_half(tensor, frame.mode):
                continue
            if op.op == "mul":
                self._product(op, tensor, given, number, frame)
            elif op.low and tensor.low and frame.is_tensor(tensor) and not _may_be_ids(tensor, given):
                negative = (number < 0) is not (op.op == "sub" and given is op.args[1])
                self._report(op, given, number, "-inf" if negative else "inf", "", frame)

    def _product(self, op: Value, tensor: Value, given: Value, number: float, frame: Frame) -> None:
        """``(1 - mask) * -1e9``, which is infinite wherever it is not 0."""
        if op.low and tensor.low and frame.is_tensor(tensor) and _least(tensor) * abs(number) > frame.mode.largest:
            # Every element: ``-1e9 * torch.ones_like(scores)``.
            self._report(op, given, number, "-inf" if number * tensor.lo < 0 else "inf", "", frame)
            return
        mask, one_less, sign = _masked(tensor)
        infinite = "-inf" if number * sign < 0 else "inf"
        where = f" wherever `{frame.text(mask.node)}` is {'not 1' if one_less else 'not 0'}"
        named, forward = _is_mask(mask), frame.function is not None and frame.function.is_forward
        if not is_tensor(mask, frame) or not (named or (one_less and forward)):
            return
        if op.low and tensor.low and named:
            self._report(op, given, number, infinite, where, frame)
        elif not frame.autocast and half_where_float(mask):
            # Whole numbers would make it float32; the floats that a half model is given are half.
            self._report(op, given, number, infinite, f"{where}, if it is half like the model", frame)

    def _report(self, op: Value, given: Value, number: float, infinite: str, where: str, frame: Frame) -> None:
        if op.node is not None:
            message = f"`{frame.text(op.node)}` is {infinite} in {frame.mode.dtype}{where}: {number:g} does not fit"
            self.report(frame, op.node, message, culprit=given)


def _least(value: Value) -> float:
    """How large each element is at least, whatever its sign."""
    return max(value.lo, -value.hi, 0.0)


def _may_be_ids(tensor: Value, given: Value) -> bool:
    """Whether a whole number is added to what came from outside: an offset of identifiers, most likely."""
    return isinstance(given.const, int) and source_of(tensor).op in (
        "param",
        "attr",
        "name",
        "element",
        "call",
        "method",
    )


def _masked(value: Value) -> tuple[Value, bool, int]:
    """The mask of ``1 - mask`` and ``mask - 1``, else the value itself; whether it is one of these; its sign."""
    found = source_of(value)
    if found.op in ("sub", "rsub") and len(found.args) == 2:
        left, right = found.args
        if left.number == 1:
            return right, True, 1
        if right.number == 1:
            return left, True, -1
    return value, False, 1


def _is_mask(value: Value) -> bool:
    """Whether a tensor is made of a mask: of booleans that were converted, or of what is called a mask."""
    found = source_of(value)
    if found.tensor and found.dtypes == BOOL:
        return True
    name = found.data if isinstance(found.data, str) else ""
    return found.op in ("param", "attr", "name", "element") and MASK in name.lower()
