"""Positions and their angles in half precision."""

from __future__ import annotations

from amp_rules.checks.common.device_places import stays_as_it_is
from amp_rules.checks.common.mixed_types import at_construction, is_outer, operands, place
from amp_rules.checks.common.position_counts import position_behind
from amp_rules.lattice import torch_operations as ops
from amp_rules.lattice.abstract_values import (
    ASSUMED,
    CAST,
    F32,
    IN_A_FEW_LINES,
    IN_AN_OPERAND,
    IN_ONE_EXPRESSION,
    LOW,
    OTHER,
    PASSING,
    Value,
    alternatives,
    source_of,
)
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check
from amp_rules.torch.half_precision import BFLOAT16
from amp_rules.torch.idioms import NAMED_FREQUENCY, NAMED_LENGTH

_PRODUCTS = ("matmul", "bmm", "einsum", "mm")
_FUNCTIONS = ("sin", "cos", "polar")
_CONVERSIONS = frozenset({"to", "type_as", "type", "half", "bfloat16"})
_POWERS = frozenset({"rpow", "pow", "exp", "buffer", "reciprocal", "linspace"})
_ROUNDED = frozenset({"mul", "add", "outer", "div", "einsum", "matmul"})


class LowpPositions(Check):
    """Positions and their angles in half precision.

    ## What it does

    Looks for positions (`arange`, `position_ids`) that are multiplied with frequencies by an operation that autocast
    lowers, for counts of more elements than half precision tells apart, for counts along a sequence that are made half
    by name, and for sine and cosine of angles in half precision.

    ## Why

    float16 is exact for whole numbers up to 2048, bfloat16 up to 256: `torch.arange(2048, 2056).half()` has 5 different
    elements of 8. An angle of 2049 rounded to half is off by up to 1 radian, so that distant tokens get each other's
    rotary embedding. Under autocast a cast to float32 before `@` or `einsum` does not help: the product is half again.

    ## Example

        positions = torch.arange(length, device=x.device).float()
        angles = torch.einsum("i,j->ij", positions, self.inv_freq)

    ## Use instead

        positions = torch.arange(length, device=x.device).float()
        angles = positions[:, None] * self.inv_freq[None, :]

    ## When it is silent

    When autocast is off around the product, when the range is known to be short or steps through channels, when the
    positions were divided by their number, when positions made without a device are still on the CPU, and when their
    sine, cosine or embedding is multiplied.

    ## Source

    https://arxiv.org/abs/2411.13476
    """

    code = "AMP711"
    name = "lowp-positions"
    severity = "warning"
    message = "Positions or angles are rounded to half precision."
    advice = "Keep positions and angles in float32 with autocast off, and convert the sine and cosine."
    triggers = ("arange", "positions", "position_ids", "pos_ids", "inv_freq", "freqs", "pos.")
    operations = (*_PRODUCTS, "arange", *_FUNCTIONS)

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a product, a count or a sine."""
        if op.node is None:
            return
        if op.op == "arange":
            self._count(op, frame)
        elif op.op in _FUNCTIONS:
            self._angle(op, frame)
        else:
            self._product(op, frame)

    def _product(self, op: Value, frame: Frame) -> None:
        lowered = frame.autocast and op.op in frame.machine.table.lower
        if (op.op == "einsum" and frame.mode.device == "cpu") or at_construction(frame):
            return
        given = [item for item in operands(op) if item.tensor]
        if len(given) != 2:
            return
        if lowered and stays_as_it_is(op, frame):
            return
        exact = frame.mode.largest_exact_integer
        found = [position_behind(item, exact) for item in given]
        for position, other in ((0, 1), (1, 0)):
            item = given[position]
            if not (lowered or (item.dtypes == LOW and item.bits & CAST)):
                continue
            known = found[position] is not None and found[other] is None and _are_frequencies(given[other], frame)
            if known or (found[other] is None and is_outer(op) and _is_named_frequency(given[other], frame)):
                name, who = frame.text(item.node), "autocast rounds" if lowered else "this rounds"
                message = f"{who} the positions `{name}` to {frame.mode.dtype} for `{op.op}`"
                self.report(frame, op.node, message)  # type: ignore[arg-type]
                return

    def _count(self, op: Value, frame: Frame) -> None:
        given = ops.explicit_dtype(op)
        if given is None or op.dtypes != LOW:
            return
        exact = BFLOAT16.largest_exact_integer if given.sym == "torch.bfloat16" else frame.mode.largest_exact_integer
        step = op.arg(2, "step")
        if step is not None and step.number not in (1.0, -1.0):
            return
        for end in op.args[:2]:
            if _counts_elements(end, exact) or (given.sym and _counts_tokens(end)):
                break
        else:
            return
        message = f"`{frame.text(end.node)}` numbers of type `{frame.text(given.node)}` are not exact above {exact:g}"
        self.report(frame, op.node, message)  # type: ignore[arg-type]

    def _angle(self, op: Value, frame: Frame) -> None:
        if op.node is None or at_construction(frame):
            return
        for angle in alternatives(op.args[0]):
            rounded = _rounded(angle) if angle.dtypes == LOW else None
            if rounded is None:
                continue
            if frame.autocast and rounded.op in _PRODUCTS and stays_as_it_is(rounded, frame):
                continue
            found = position_behind(rounded, frame.mode.largest_exact_integer)
            converted = rounded.op in _CONVERSIONS
            if found and found.op == "arange" and found.dtypes == LOW:
                message = f"the positions `{frame.text(found.node)}` are rounded to {frame.mode.dtype} for their angles"
                self.report(frame, place(frame, found, op.node), message)
            elif (converted and _is_named_frequency(rounded, frame)) or (found and (converted or found.op != "param")):
                message = f"the angles `{frame.text(rounded.node)}` are rounded to {frame.mode.dtype}"
                self.report(frame, place(frame, rounded, op.node), message)


def _rounded(angle: Value) -> Value | None:
    """The conversion or the product that made an angle half."""
    value = angle
    while value.op in PASSING or value.op in ("cat", "stack", "concat", "tuple", "list"):
        if value.op in _CONVERSIONS and value.args:
            return value if value.args[0].dtypes & F32 or value.args[0].bits & ASSUMED else None
        if not value.args:
            return None
        value = value.args[0]
    return value if value.op in _ROUNDED else None


def _is_named_frequency(value: Value, frame: Frame) -> bool:
    """Whether a value is called frequencies."""
    held = source_of(value)
    name = held.data if isinstance(held.data, str) else frame.text(held.node)
    return any(part in name.lower() for part in NAMED_FREQUENCY)


def _are_frequencies(value: Value, frame: Frame) -> bool:
    """Whether a factor was made by powers or holds constants, rather than being an activation."""
    for item in value.behind(IN_A_FEW_LINES):
        if item.op in _POWERS or (item.op == "div" and item.args[0].is_const):
            return True
    return _is_named_frequency(value, frame)


def _counts_elements(end: Value, exact: float) -> bool:
    """Whether the end of a range is the number of elements of several dimensions."""
    number = end.number
    if number is not None:
        return number > exact
    if end.op == "numel":
        return True
    for item in end.behind(IN_AN_OPERAND):
        if item.op == "mul" and sum(part.op in ("size", "mul", "element", "getitem") for part in item.args) == 2:
            return any(part.op == "size" for part in item.behind(IN_AN_OPERAND)) and item.dtypes != OTHER
    return False


def _counts_tokens(end: Value) -> bool:
    """Whether the end of a range is made of a number that is called the length of sequences."""
    names = (item.data for item in end.behind(IN_ONE_EXPRESSION) if item.number is None and isinstance(item.data, str))
    return any(NAMED_LENGTH.search(name.lower()) for name in names)
