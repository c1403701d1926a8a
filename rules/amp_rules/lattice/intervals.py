"""The intervals of what operations of torch give, from those of what they are given."""

from __future__ import annotations

import math
from collections.abc import Callable

from amp_rules.lattice.abstract_values import (
    BOOL,
    GUARDED,
    INF,
    INT,
    INTEGRAL,
    MAX_SUBTRACTED,
    OTHER,
    POSITION,
    PROBABILITY,
    SIGMOID,
    Value,
    alternatives,
    same,
)  # fmt: skip
from amp_rules.lattice.operation_names import words


def _between(lo: float, hi: float, bits: int = 0) -> Callable[[Value], None]:
    def fill(value: Value) -> None:
        value.lo, value.hi = lo, hi
        value.bits |= bits

    return fill


def _pass(value: Value) -> None:
    if value.args:
        value.lo, value.hi = value.args[0].lo, value.args[0].hi


def _dropout(value: Value) -> None:
    """Some elements become 0, the others grow."""
    first = value.args[0]
    value.lo, value.hi = (0.0 if first.lo >= 0 else -INF), (0.0 if first.hi <= 0 else INF)
    value.bits |= first.bits & MAX_SUBTRACTED


def _not_negative(value: Value) -> None:
    value.lo = 0.0


def _relu(value: Value) -> None:
    first = value.args[0]
    value.lo, value.hi = max(0.0, first.lo), max(0.0, first.hi)


def _abs(value: Value) -> None:
    first = value.args[0]
    low = 0.0 if first.lo <= 0 <= first.hi else min(abs(first.lo), abs(first.hi))
    value.lo, value.hi = low, max(abs(first.lo), abs(first.hi))


def _neg(value: Value) -> None:
    first = value.args[0]
    value.lo, value.hi = -first.hi, -first.lo


def _exp(value: Value) -> None:
    first = value.args[0]
    value.lo = _guarded_exp(first.lo)
    value.hi = _guarded_exp(first.hi)


def _guarded_exp(x: float) -> float:
    return math.exp(x) if x < 700 else INF


def _square(value: Value) -> None:
    _abs(value)
    value.lo, value.hi = value.lo * value.lo, _product(value.hi, value.hi)


def _pow(value: Value) -> None:
    power = value.args[1].number if len(value.args) > 1 else None
    if power is not None and power % 2 == 0:
        value.lo = 0.0
        if power == 2:
            _square(value)
    elif value.args[0].lo >= 0:
        value.lo = 0.0


def _add(value: Value) -> None:
    a, b = value.args[0], value.args[1]
    if a.lo != -b.lo:
        value.lo = a.lo + b.lo
    elif abs(a.lo) != INF:
        value.lo = 0.0
    if a.hi != -b.hi:
        value.hi = a.hi + b.hi
    elif abs(a.hi) != INF:
        value.hi = 0.0
    for one, other in ((a, b), (b, a)):
        if one.number is not None:
            value.bits |= other.bits & MAX_SUBTRACTED if one.number <= 0 else 0
            if 0 < one.number < 0.5:
                value.bits |= GUARDED


def _sub(value: Value) -> None:
    a, b = value.args[0], value.args[1]
    if a.lo != b.hi or abs(a.lo) != INF:
        value.lo = a.lo - b.hi
    if a.hi != b.lo or abs(a.hi) != INF:
        value.hi = a.hi - b.lo
    if _is_maximum_of(b, a):
        value.bits |= MAX_SUBTRACTED
        value.hi = 0.0


_UNCHANGED = words(
    "to type_as float double half bfloat16 detach clone contiguous data alias unsqueeze squeeze view reshape expand "
    "expand_as view_as cpu cuda values"
)


def _is_maximum_of(b: Value, a: Value) -> bool:
    """Whether ``b`` is the maximum of ``a``, over a dimension or altogether, or their logsumexp."""
    for item in alternatives(b.through(_UNCHANGED | {"getitem"})):
        item = item.through(_UNCHANGED | {"getitem"})
        if item.op not in ("max", "amax", "logsumexp", "cummax", "maximum") or not item.args:
            return False
        if not same(item.args[0].through(_UNCHANGED), a.through(_UNCHANGED)):
            return False
    return True


def _product(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _mul(value: Value) -> None:
    a, b = value.args[0], value.args[1]
    if same(a, b):
        _square(value)
        return
    if (a.lo == -INF and a.hi == INF) or (b.lo == -INF and b.hi == INF):
        return
    corners = [_product(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    value.lo, value.hi = min(corners), max(corners)


def _div(value: Value) -> None:
    a, b = value.args[0], value.args[1]
    if b.number:
        ends = (a.lo / b.number, a.hi / b.number)
        value.lo, value.hi = min(ends), max(ends)
    elif b.lo > 0:
        value.lo = a.lo / (b.hi if a.lo >= 0 else b.lo) if a.lo != -INF else -INF
        value.hi = a.hi / (b.lo if a.hi >= 0 else b.hi) if a.hi != INF else INF
    elif b.lo == 0:
        if a.lo >= 0:
            value.lo = 0.0
        if a.hi <= 0:
            value.hi = 0.0


def _clamp(value: Value) -> None:
    first = value.args[0]
    value.lo, value.hi = first.lo, first.hi
    low, high = clamp_bounds(value)
    if low is not None and low.dtypes != OTHER:
        value.lo = max(value.lo, low.lo)
        value.hi = max(value.hi, low.hi)
        if low.lo > 0:
            value.bits |= GUARDED
    if high is not None and high.dtypes != OTHER:
        value.hi = min(value.hi, high.hi)
        value.lo = min(value.lo, high.lo)


def clamp_bounds(value: Value) -> tuple[Value | None, Value | None]:
    """The least and the largest value that a ``clamp``, ``clamp_min``, ``clamp_max`` lets through."""
    if value.op == "clamp_min":
        return value.arg(1, "min"), None
    if value.op == "clamp_max":
        return None, value.arg(1, "max")
    return value.arg(1, "min"), value.arg(2, "max")


def _maximum(value: Value) -> None:
    if len(value.args) > 1:
        value.lo = max(value.args[0].lo, value.args[1].lo)
        value.hi = max(value.args[0].hi, value.args[1].hi)


def _minimum(value: Value) -> None:
    if len(value.args) > 1:
        value.lo = min(value.args[0].lo, value.args[1].lo)
        value.hi = min(value.args[0].hi, value.args[1].hi)


def _extreme(value: Value) -> None:
    """``max`` and ``min``: of one tensor over a dimension, or of two tensors."""
    _pass(value)
    if len(value.args) > 1 and value.args[1].tensor:
        if value.args[1].tensor == 2:
            (_maximum if value.op == "max" else _minimum)(value)
        elif value.op == "max":
            value.hi = max(value.hi, value.args[1].hi)
        else:
            value.lo = min(value.lo, value.args[1].lo)


def _sum(value: Value) -> None:
    first = value.args[0]
    if first.lo >= 0:
        value.lo = 0.0
    if first.hi <= 0:
        value.hi = 0.0
    if first.bits & PROBABILITY:
        value.bits |= PROBABILITY


def _where(value: Value) -> None:
    if len(value.args) == 3:
        test, first, second = value.args
        (low, high), (least, most) = _selected(first, test, True), _selected(second, test, False)
        value.lo, value.hi = min(low, least), max(high, most)


def _masked_fill(value: Value) -> None:
    filled = value.arg(2, "value")
    low, high = _selected(value.args[0], value.args[1], False) if len(value.args) > 1 else (-INF, INF)
    value.lo = min(low, filled.lo if filled is not None else -INF)
    value.hi = max(high, filled.hi if filled is not None else INF)


_COPIES = frozenset({"alias", "clone", "contiguous", "detach", "float", "to"})
"""What leaves each element where it is."""


def _selected(value: Value, test: Value, holds: bool) -> tuple[float, float]:
    """The interval of the elements of a value for which a test holds, or does not."""
    while test.op in ("invert", "logical_not") and test.args:
        test, holds = test.args[0], not holds
    low, high = value.lo, value.hi
    if test.op in ("lt", "le", "gt", "ge") and len(test.args) == 2 and not math.isnan(value.lo):
        left, right = test.args
        below = (test.op in ("lt", "le")) is holds
        if left.through(_COPIES) is value.through(_COPIES):
            low, high = (low, min(high, right.hi)) if below else (max(low, right.lo), high)
        elif right.through(_COPIES) is value.through(_COPIES):
            low, high = (max(low, left.lo), high) if below else (low, min(high, left.hi))
    return (low, high) if low <= high else (value.lo, value.hi)


def fill_chosen(value: Value) -> None:
    """The interval of the elements that a mask chooses: ``x[x > 0]``."""
    held, mask = value.args
    value.lo, value.hi = _selected(held, mask, True)


def _sqrt(value: Value) -> None:
    first = value.args[0]
    value.lo = math.sqrt(first.lo) if 0 < first.lo < INF else 0.0
    value.hi = math.sqrt(first.hi) if 0 < first.hi < INF else INF
    value.bits |= first.bits & GUARDED


def _cumsum(value: Value) -> None:
    first = value.args[0]
    value.bits |= first.bits & INTEGRAL
    if first.dtypes & ~(BOOL | INT) == 0 and first.tensor:
        value.dtypes = INT if value.dtypes & (INT | BOOL) else value.dtypes
        value.bits |= POSITION
    if first.lo >= 0:
        value.lo = 0.0


def _monotonic(function: Callable[[float], float]) -> Callable[[Value], None]:
    """Of a function that only rises: what it makes of the ends, where it is defined there."""

    def fill(value: Value) -> None:
        first = value.args[0]
        value.lo, value.hi = _at(function, first.lo, -INF), _at(function, first.hi, INF)

    return fill


def _at(function: Callable[[float], float], x: float, otherwise: float) -> float:
    try:
        return function(x)
    except (ValueError, OverflowError):
        return otherwise


def _list(value: Value) -> None:
    """``cat`` and ``stack``."""
    given = value.args[0]
    elements = given.args if given.op in ("tuple", "list") and given.data is None else ()
    if elements and all(item.op != "starred" for item in elements):
        value.lo, value.hi = min(item.lo for item in elements), max(item.hi for item in elements)


def _spread(value: Value) -> None:
    """A variance or deviation: of two elements at both ends at most."""
    first = value.args[0]
    half = (first.hi - first.lo) / math.sqrt(2.0)
    value.lo, value.hi = 0.0, half if value.op == "std" else _product(half, half)


def _softplus(value: Value) -> None:
    value.lo, value.hi = 0.0, max(0.0, value.args[0].hi) + 1.0


def _pooled(value: Value) -> None:
    """Averages, in which zeros may have part."""
    first = value.args[0]
    value.lo, value.hi = min(0.0, first.lo), max(0.0, first.hi)


def _mod(value: Value) -> None:
    divisor = value.args[1].number if len(value.args) > 1 else None
    if divisor is not None:
        value.lo, value.hi = min(0.0, divisor), max(0.0, divisor)


def _uniform(value: Value) -> None:
    low, high = value.arg(1, "from"), value.arg(2, "to")
    value.lo = low.lo if low is not None else 0.0
    value.hi = high.hi if high is not None else 1.0


_PI = math.pi
INTERVALS: dict[str, Callable[[Value], None]] = {
    "softmax": _between(0.0, 1.0, PROBABILITY),
    "gumbel_softmax": _between(0.0, 1.0, PROBABILITY),
    "softmin": _between(0.0, 1.0, PROBABILITY),
    "sigmoid": _between(0.0, 1.0, SIGMOID),
    "hardsigmoid": _between(0.0, 1.0),
    "tanh": _between(-1.0, 1.0),
    "sin": _between(-1.0, 1.0),
    "cos": _between(-1.0, 1.0),
    "erf": _between(-1.0, 1.0),
    "sign": _between(-1.0, 1.0),
    "relu6": _between(0.0, 6.0),
    "cosine_similarity": _between(-1.0, 1.0),
    "normalize": _between(-1.0, 1.0),
    "bernoulli": _between(0.0, 1.0),
    "hardtanh": _clamp,
    "atan": _between(-_PI / 2, _PI / 2),
    "asin": _between(-_PI / 2, _PI / 2),
    "acos": _between(0.0, _PI),
    "atan2": _between(-_PI, _PI),
    "erfc": _between(0.0, 2.0),
    "frac": _between(-1.0, 1.0),
    "log_softmax": _between(-INF, 0.0),
    "logsigmoid": _between(-INF, 0.0),
    "relu": _relu,
    "abs": _abs,
    "neg": _neg,
    "exp": _exp,
    "exp2": _monotonic(lambda x: 2.0**x),
    "expm1": _monotonic(math.expm1),
    "log": _monotonic(math.log),
    "log2": _monotonic(math.log2),
    "log10": _monotonic(math.log10),
    "log1p": _monotonic(math.log1p),
    "floor": _monotonic(lambda x: float(math.floor(x))),
    "ceil": _monotonic(lambda x: float(math.ceil(x))),
    "round": _monotonic(lambda x: float(round(x))),
    "trunc": _monotonic(lambda x: float(math.trunc(x))),
    "mod": _mod,
    "uniform": _uniform,
    "cat": _list,
    "stack": _list,
    "avg_pool1d": _pooled,
    "avg_pool2d": _pooled,
    "avg_pool3d": _pooled,
    "adaptive_avg_pool1d": _pooled,
    "adaptive_avg_pool2d": _pooled,
    "adaptive_avg_pool3d": _pooled,
    "square": _square,
    "pow": _pow,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "maximum": _maximum,
    "minimum": _minimum,
    "max": _extreme,
    "min": _extreme,
    "amax": _pass,
    "amin": _pass,
    "mean": _pass,
    "nanmean": _pass,
    "median": _pass,
    "dropout": _dropout,
    "masked_scatter": _pass,
    "where": _where,
    "masked_fill": _masked_fill,
    "sum": _sum,
    "cumsum": _cumsum,
    "sqrt": _sqrt,
    "norm": _not_negative,
    "vector_norm": _not_negative,
    "var": _spread,
    "std": _spread,
    "softplus": _softplus,
    "cdist": _not_negative,
    "rsqrt": _not_negative,
}


_OF_TWO = frozenset({"add", "sub", "mul", "div"})


def fill_interval(value: Value) -> None:
    """Fill in the interval of an operation's result, where the operation has one and is given what it needs."""
    interval = INTERVALS.get(value.op)
    if interval is not None and len(value.args) >= (2 if value.op in _OF_TWO else 1) and not _is_scaled(value):
        interval(value)


def _is_scaled(value: Value) -> bool:
    """Whether ``alpha=`` or ``rounding_mode=`` changes what an operation does."""
    kwargs = value.kwargs
    return bool(kwargs) and ("alpha" in kwargs or "rounding_mode" in kwargs)  # type: ignore[operator]
