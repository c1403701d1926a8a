"""Positions: whole numbers that count tokens or pixels, as far as arithmetic leaves them large."""

from __future__ import annotations

from amp_rules.lattice.abstract_values import IN_A_FUNCTION, IN_AN_OPERAND, PASSING, Value
from amp_rules.torch.idioms import NAMED_POSITIONS

_LINEAR = (
    PASSING
    | {"add", "sub", "mul", "div", "cat", "stack", "outer", "einsum", "meshgrid", "concat", "alias", "join", "result"}
    | {"matmul", "bmm", "setitem", "augment", "where", "floordiv", "element"}
)
_COUNTS = frozenset({"arange", "range"})


def is_position(value: Value, exact: float, depth: int = IN_A_FUNCTION) -> bool:
    """Whether elements of ``value`` are positions, or products of them, that may exceed ``exact``."""
    return position_behind(value, exact, depth) is not None


def position_behind(value: Value, exact: float, depth: int = IN_A_FUNCTION) -> Value | None:
    """The ``arange``, or the argument named for it, whose positions ``value`` holds."""
    if depth == 0 or (value.lo >= -exact and value.hi <= exact):
        return None
    if value.op in _COUNTS:
        return value if _is_long(value, exact) else None
    if value.op in ("param", "attr", "buffer", "element") and isinstance(value.data, str):
        if NAMED_POSITIONS.search(value.data.lower()) and value.tensor:
            return value
    if value.op not in _LINEAR:
        return None
    if value.op in ("div", "floordiv") and _is_a_size(value.args[1]):
        return None  # A fraction of the whole.
    items = value.args
    if value.op in PASSING or value.op == "div":
        items = items[:1]
    for item in items:
        for part in item.args if item.op in ("tuple", "list") else (item,):
            found = position_behind(part, exact, depth - 1)
            if found is not None:
                return found
    return None


def _is_long(counts: Value, exact: float) -> bool:
    """Whether a range may be longer than ``exact``: channels in steps of two are not."""
    step = counts.arg(2, "step")
    if step is not None and step.number not in (None, 1.0):
        return False
    end = counts.args[1] if len(counts.args) > 1 else counts.args[0] if counts.args else None
    return end is None or end.number is None or end.number > exact


def _is_a_size(value: Value) -> bool:
    return any(item.op in ("size", "len", "numel", "dim") for item in value.behind(IN_AN_OPERAND)) or value.tensor == 2
