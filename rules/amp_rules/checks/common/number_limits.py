"""Numbers against the range of the half type, for the rules about constants."""

from __future__ import annotations

import ast
import math

from amp_rules.lattice.abstract_values import FLOATS, IN_ONE_FORMULA, LOW, ZERO_DIM, Value, alternatives
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode

_MAKERS = frozenset({"tensor", "as_tensor", "scalar_tensor", "new_tensor"})


def numbers_of(value: Value | None) -> tuple[float, ...]:
    """The numbers that a value may be, if all of them are known; that of a tensor or buffer made of one, too."""
    if value is None:
        return ()
    found = []
    for item in alternatives(value):
        given = _held_number(item)
        if given is None:
            return ()
        found.append(given)
    return tuple(found)


def _held_number(value: Value) -> float | None:
    if value.op in _MAKERS and value.args:
        held = value.args[-1 if value.op == "new_tensor" else 0]
        return held.number
    if value.op == "buffer" and value.args and value.bits & ZERO_DIM:
        return _held_number(value.args[0])
    return value.number


def too_large(value: Value | None, mode: Mode) -> float | None:
    """The finite number that a value is, if the half type cannot hold it, whichever of its alternatives is meant."""
    numbers = numbers_of(value)
    if not numbers or not all(mode.largest < abs(item) < math.inf for item in numbers):
        return None
    return numbers[0]


def vanishes(value: Value | None, mode: Mode) -> float | None:
    """The positive number that a value is, if it becomes 0 in the half type."""
    numbers = numbers_of(value)
    if not numbers or not all(0 < item <= mode.rounds_to_zero for item in numbers):
        return None
    return numbers[0]


def is_limit(value: Value) -> bool:
    """Whether a number was read off ``torch.finfo``."""
    return any(item.op.startswith("finfo") for item in alternatives(value))


def half_where_float(value: Value) -> bool:
    """Whether a tensor is half for certain, if it holds floats at all."""
    return value.tensor > 0 and value.dtypes & FLOATS == LOW


def other_half(value: Value, mode: Mode) -> bool:
    """Whether the author converted a tensor to the half type that is not the mode's."""
    plain, names = ("bfloat16", _BFLOAT16) if mode.fp16 else ("half", _FLOAT16)
    for start in (value, value.root):
        for item in start.behind(IN_ONE_FORMULA):
            if item.op == plain or (item.op == "to" and any(given.sym in names for given in item.args[1:])):
                return True
    return False


_BFLOAT16 = frozenset({"torch.bfloat16"})
_FLOAT16 = frozenset({"torch.float16", "torch.half"})


def argument_node(op: Value, position: int, name: str = "") -> ast.expr | None:
    """Where the argument at ``position`` (the receiver is 0) or of that name is written in a call."""
    node = op.node
    if not isinstance(node, ast.Call):
        return None
    for item in node.keywords:
        if item.arg == name:
            return item.value
    offset = len(op.args) - len(node.args)
    index = position - offset
    return node.args[index] if offset in (0, 1) and 0 <= index < len(node.args) else None


def origin(frame: Frame, value: Value, default: ast.AST) -> ast.AST:
    """Where a number is written, if that is in the file that is judged, else ``default``."""
    node = value.node
    if node is None or node is default:
        return default
    line = getattr(node, "lineno", None)
    if line is None:
        return default
    return node if frame.module.holds(node) else default


def described(frame: Frame, node: ast.AST | None, number: float) -> str:
    """An argument for a message: as it is written, with its number where it is written as a name."""
    text = frame.text(node)
    if not text:
        return f"{number:g}"
    return f"`{text}`" if any(sign.isdigit() for sign in text) else f"`{text}` ({number:g})"
