"""Arithmetic with numbers outside of the range of half precision."""

from __future__ import annotations

import re

from amp_rules.checks.common.number_limits import is_limit, other_half, too_large
from amp_rules.lattice.abstract_values import BOOL, Value, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check
from amp_rules.torch.idioms import MASK


class ConstOverflowArith(Check):
    """Arithmetic with numbers that half precision cannot hold.

    ## What it does
    Finds `x + c` and `x - c` where the number is outside of the range of the half type and `x` is half, and
    `(1 - mask) * c` where the mask was converted to half.

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
    message = "A half tensor meets a number that half precision cannot hold."
    advice = "Use masked_fill with `torch.finfo(x.dtype).min`, a smaller number, or float32."
    triggers = (
        "1e5", "1e6", "1e7", "1e8", "1e9", "1E", "1e1", "1e2", "1e3", "0000.", "00000", "INF", "NEG", "LARGE", "BIG",
        "neg_", re.compile(r"99999(?<![.\d]99999)"),
    )  # fmt: skip
    operations = ("add", "sub", "mul")

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a sum, a difference or a product."""
        if len(op.args) < 2:
            return
        for tensor, given in (op.args[:2], op.args[1::-1]):
            number = too_large(given, frame.mode) if not given.tensor else None
            if number is None or not op.low or not tensor.low or is_limit(given):
                continue
            if other_half(tensor, frame.mode) or not frame.is_tensor(tensor) or _may_be_ids(tensor, given):
                continue
            if op.op == "mul" and not _is_mask(tensor):
                continue
            infinite = "-inf" if (number < 0) is not (op.op == "sub" and given is op.args[1]) else "inf"
            node = op.node
            if node is not None:
                where = " wherever the mask is not 0" if op.op == "mul" else ""
                message = f"`{frame.text(node)}` is {infinite} in {frame.mode.dtype}{where}: {number:g} does not fit"
                self.report(frame, node, message, culprit=given)


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


def _is_mask(value: Value) -> bool:
    """Whether a tensor is made of a mask: of booleans that were converted, or of what is called a mask."""
    if value.op == "sub" and value.args[0].number == 1:
        value = value.args[1]
    found = source_of(value)
    if found.tensor and found.dtypes == BOOL:
        return True
    name = found.data if isinstance(found.data, str) else ""
    return found.op in ("param", "attr", "name", "element") and MASK in name.lower()
