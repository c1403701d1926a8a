"""What keeps a divisor, or the argument of a logarithm or root, away from zero: an epsilon that is added, a clamp."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.checks.common.number_limits import numbers_of
from amp_rules.lattice.abstract_values import (
    BOOL,
    IN_A_FEW_LINES,
    IN_AN_OPERAND,
    IN_ONE_FORMULA,
    INT,
    LOW,
    MAX_SUBTRACTED,
    NUM,
    PASSING,
    PROBABILITY,
    ZERO_DIM,
    Value,
    same,
)
from amp_rules.lattice.intervals import clamp_bounds
from amp_rules.lattice.mode import Mode

EPSILON_USED = re.compile(
    r"eps(?:ilon)?\b(?! ?[=:])(?<!steps)(?<!=eps)(?<!= eps)(?<!=self\.eps)(?<!= self\.eps)(?<!=epsilon)(?<!= epsilon)"
    r"(?<!=self\.epsilon)(?<!= self\.epsilon)"
)
"""Where an epsilon is calculated with, not merely declared, kept or handed to a layer: a trigger."""

SINGULAR = ("div", "reciprocal", "rsqrt", "sqrt", "log", "log2", "log10", "pow")
"""Operations that an argument of zero makes infinite, or their gradient."""
_KEEPING = frozenset({"sqrt", "abs", "neg", "square", "pow"})
_OF_WEIGHTS = PASSING | {"exp", "softplus", "abs", "square", "pow"}
_TYPE_CHANGES = frozenset({"to", "type", "type_as", "float", "half", "double", "bfloat16"})


@dataclass(frozen=True)
class Guard:
    """One guard.

    Attributes:
        op: the operation that guards.
        tensor: what is guarded.
        epsilon: the number that keeps it from zero.
    """

    op: Value
    tensor: Value
    epsilon: Value


def singular_argument(op: Value) -> Value | None:
    """The argument of an operation of ``SINGULAR`` that must not be zero."""
    if op.op == "div":
        return op.args[1] if len(op.args) > 1 else None
    if op.op == "pow":
        power = op.args[1].number if len(op.args) > 1 else None
        return op.args[0] if power is not None and (power < 0 or power == 0.5) else None
    return op.args[0] if op.args else None


def guards_of(value: Value, depth: int = IN_ONE_FORMULA - 1) -> Iterator[Guard]:
    """Yield the guards that the result of an operation rests on."""
    value = value.through(PASSING - _TYPE_CHANGES)
    if depth == 0 or not value.args:
        return
    found = _guard(value)
    if found is not None:
        yield found
    elif value.op in _KEEPING:
        yield from guards_of(value.args[0], depth - 1)
    elif value.op in ("add", "sub") and value.lo < 1e-6:
        # ``a + eps + b - c``: as good as none if it vanishes.
        for item in value.args[: 2 if value.op == "add" else 1]:
            if item.op in ("add", "sub"):
                yield from guards_of(item, depth - 1)
    elif value.op in ("mul", "join"):
        for item in value.args:
            yield from guards_of(item, depth - 1)


def _guard(value: Value) -> Guard | None:
    args = value.args
    if value.op == "add" and len(args) == 2:
        for tensor, epsilon in (args, args[::-1]):
            if tensor.tensor and numbers_of(epsilon):
                return Guard(value, tensor, epsilon)
    elif value.op in ("clamp", "clamp_min"):
        least, _ = clamp_bounds(value)
        return Guard(value, args[0], least) if least is not None else None
    elif value.op in ("maximum", "max") and len(args) == 2:
        for tensor, other in (args, args[::-1]):
            epsilon = _spread(other)
            if tensor.tensor and other.tensor and numbers_of(epsilon):
                return Guard(value, tensor, epsilon)
    elif value.op == "masked_fill" and len(args) > 2:
        return Guard(value, args[0], args[2])
    elif value.op == "where" and len(args) == 3:
        for tensor, other in (args[1:], args[:0:-1]):
            epsilon = _spread(other)
            if tensor.tensor and (other.dtypes == NUM or epsilon is not other) and numbers_of(epsilon):
                return Guard(value, tensor, epsilon)
    return None


def _spread(value: Value) -> Value:
    """The number that all elements of a half tensor are, as of ``eps * torch.ones_like(x)``, else the value."""
    if value.dtypes == LOW:
        if value.op in ("full_like", "full") and len(value.args) > 1:
            return value.args[1]
        if value.op in ("new_full", "new_tensor") and value.args:
            return value.args[-1]
        if value.op == "mul" and len(value.args) == 2:
            for number, ones in (value.args, value.args[::-1]):
                if ones.op in ("ones_like", "ones", "new_ones"):
                    return number
    return value


def _is_learned(value: Value) -> bool:
    """Whether nothing but weights went into a value: training leaves none at exactly zero."""
    if value.op == "parameter":
        return True
    if value.op == "join":
        return all(_is_learned(item) for item in value.args)
    return value.op in _OF_WEIGHTS and bool(value.args) and _is_learned(value.args[0])


def may_be_zero(value: Value, mode: Mode) -> bool:
    """Whether nothing shows that a tensor is far from zero."""
    if value.lo > 0 or value.hi < 0 or _is_learned(value) or is_positive(value, mode):
        return False
    if value.op == "sum" and value.bits & PROBABILITY:
        return False
    if _is_energy(value):
        return False
    # After subtraction of the maximum one of the summands is exp(0).
    return not any(item.op == "exp" and item.args[0].bits & MAX_SUBTRACTED for item in value.behind(IN_AN_OPERAND))


def _is_energy(value: Value) -> bool:
    """Whether squares of all elements of tensors are summed: one element that is not zero is enough."""
    value = value.through(_OF_ENERGY)
    if value.op == "add":
        return all(_is_energy(item) for item in value.args[:2])
    squared = value.args[0].through(PASSING) if value.op == "sum" and value.bits & ZERO_DIM else None
    if squared is None or squared.op not in ("pow", "square", "mul"):
        return False
    if squared.op == "mul" and not same(squared.args[0], squared.args[1]):
        return False
    if squared.op == "pow" and squared.args[1].number != 2:
        return False
    # A mask, or a difference that vanishes where training succeeds, is zero everywhere at times.
    squared = squared.args[0].through(PASSING)
    return squared.op in ("param", "attr", "linear", "module", "conv2d") and not squared.dtypes & (INT | BOOL)


_OF_ENERGY = PASSING | {"sqrt"}
_CARRYING = PASSING | {"sqrt", "abs", "sum", "mean", "max", "amax", "min", "amin", "square", "clamp", "clamp_min"}
_CONVOLVING = frozenset({"conv1d", "conv2d", "conv3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "interpolate"})
_UNIFORM = frozenset({"rand", "rand_like", "uniform"})


def is_positive(value: Value, mode: Mode, depth: int = IN_A_FEW_LINES) -> bool:
    """Whether a tensor was made such that no element of it is zero: it was guarded, or a constant was added, before."""
    value = value.through(_CARRYING)
    if depth == 0 or not value.args:
        return False
    if value.op == "softplus" or (value.op == "add" and _is_lifted(value, mode)):
        return True
    first = value.args[0]
    if value.op == "neg" and first.op == "log" and first.args:
        # Zero only where the argument is 1, which uniform numbers never are.
        return first.args[0].through(_CARRYING).op in _UNIFORM
    if value.op == "join":
        return all(is_positive(item, mode, depth - 1) for item in value.args)
    if value.op == "mul":
        return all(bool(item.number) or is_positive(item, mode, depth - 1) for item in value.args[:2])
    if value.op == "div":
        return bool(value.args[1].number) and is_positive(first, mode, depth - 1)
    if value.op == "pow":
        power = value.args[1].number if len(value.args) > 1 else None
        return power is not None and abs(power) <= 2 and is_positive(first, mode, depth - 1)
    # With a kernel that is not known this is as good as the author's word: who adds an epsilon before smooths.
    return value.op in _CONVOLVING and is_positive(first, mode, depth - 1)


def _is_lifted(value: Value, mode: Mode) -> bool:
    """Whether a number was added that half precision holds, and that the other summand does not just take away."""
    for number, other in (value.args[:2], value.args[1::-1]):
        if number.number is not None and number.number > mode.rounds_to_zero and other.tensor:
            return other.lo != -number.number
    return False
