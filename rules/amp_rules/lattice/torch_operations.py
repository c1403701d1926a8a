"""What operations of torch do to abstract values: types by the cast table of the mode, intervals, provenance."""

from __future__ import annotations

from amp_rules.lattice.abstract_values import (
    ASSUMED,
    BOOL,
    CAST,
    ELEMENTWISE_BITS,
    F32,
    F64,
    FLOATS,
    INT,
    INTEGRAL,
    LOOP,
    LOW,
    NUM,
    OTHER,
    PARAMETER,
    POSITION,
    TENSORS,
    ZERO_DIM,
    Value,
    alternatives,
    promote,
)  # fmt: skip
from amp_rules.lattice.half_precision import Casts
from amp_rules.lattice.intervals import fill_interval
from amp_rules.lattice.operation_names import BOOLEANS, COUNTS, DTYPES, INTEGERS, NUMBERS, REDUCTIONS, VIEWS, words


def dtype_named(value: Value | None) -> int:
    """The types that a value given as ``dtype=`` stands for; 0 where it says nothing."""
    if value is None or (value.is_const and value.const is None):
        return 0
    if value.sym is not None:
        return DTYPES.get(value.sym, 0)
    if value.op == "dtype" and value.args:
        return value.args[0].dtypes
    if value.is_const and isinstance(value.const, str):
        return DTYPES.get(value.const, DTYPES.get(f"torch.{value.const}", 0))
    if value.op == "join":
        found = [dtype_named(item) for item in value.args]
        return 0 if 0 in found else _union(found)
    if value.op == "promote_types":
        kinds = [dtype_named(item) for item in value.args]
        return 0 if 0 in kinds or len(kinds) != 2 else promote(*kinds)
    return 0


_OF_ONE_TYPE = frozenset({"matmul", "mm", "bmm", "mv", "dot", "baddbmm", "addmm"})


def _union(masks: list[int]) -> int:
    result = 0
    for mask in masks:
        result |= mask
    return result


def explicit_dtype(value: Value) -> Value | None:
    """The ``dtype=`` argument of a call."""
    given = value.kwargs.get("dtype") if value.kwargs else None
    if given is None and value.op in _TYPED_BY_POSITION:
        given = next((item for item in value.args[1:] if item.sym in DTYPES or item.op == "dtype"), None)
    return None if given is not None and given.is_const and given.const is None else given


def apply(value: Value, table: Casts | None) -> None:
    """Fill in what ``value``, made by an operation on tensors, may be.

    Args:
        value: with operation and arguments set.
        table: the cast table where autocast is on.
    """
    op, args = value.op, value.args
    first = args[0] if args else None
    if op in VIEWS:
        if first is not None:
            _keep(value, first)
            if op == "conj" or is_complex(first):
                value.dtypes, value.tensor, value.anchor = (F32 if op == "real" else OTHER), 2, None
                return
            if table is not None and op in table.float32:
                value.dtypes, value.anchor = _raised(first.dtypes), None
        return
    if op in INTEGERS:
        value.dtypes, value.tensor = INT, 2
        if first is not None:
            value.bits = first.bits & (POSITION | LOOP) | INTEGRAL
        return
    if op in BOOLEANS:
        decided = op in ("allclose", "equal", "is_nonzero")
        value.dtypes = BOOL if not decided and any(item.tensor for item in args) else NUM
        value.tensor = max((item.tensor for item in args), default=0) if not decided else 0
        value.lo, value.hi = 0.0, 1.0
        value.bits = INTEGRAL
        return
    if op in NUMBERS:
        value.dtypes = NUM
        if op in COUNTS:
            value.lo, value.bits = 0.0, INTEGRAL
        return
    if any(is_complex(item) for item in args):
        # Autocast leaves complex numbers alone, and each of their parts is float32.
        value.dtypes, value.tensor = (F32 if op in _REAL_PARTS else OTHER), 2
        if op in _REAL_PARTS:
            fill_interval(value)
        return
    mask = 0
    tensor = 0
    bits = 0
    weak = 0
    numbers = 0
    for item in args if not value.kwargs else (*args, *_operands(value.kwargs)):
        kind = item.dtypes
        if item.op == "tuple" or item.op == "list" or item.op == "join":
            for element in _elements(item):
                kind = element.dtypes if element.op != "starred" else LOW | F32
                mask = promote(mask, kind) if mask else kind
                tensor = max(tensor, element.tensor)
                bits |= element.bits & ELEMENTWISE_BITS
            if item.op != "join" or item.dtypes == OTHER:
                continue
            kind = item.dtypes
        if item.tensor > tensor:
            tensor = item.tensor
        bits |= item.bits & ELEMENTWISE_BITS
        if item.bits & ZERO_DIM and op not in _LOSSES:
            weak = promote(weak, kind) if weak else kind
        elif kind == NUM:
            numbers |= _number_kind(item)
        elif kind & (TENSORS | NUM) and not (op == "where" and item is first):
            mask = promote(mask, kind) if mask else kind
    if weak:
        # A tensor without dimensions decides only where it is of a higher category than the others.
        if not mask:
            mask, bits = weak, bits | ZERO_DIM
        elif mask & (INT | BOOL):
            mask = mask & FLOATS | promote(mask & ~FLOATS, weak)
        if mask & NUM and mask != NUM:
            # Where the other is a number of Python, the tensor decides after all.
            mask = mask & ~NUM | weak
    if numbers:
        mask = _with_numbers(op, mask, numbers)
    given = explicit_dtype(value)
    named = dtype_named(given)
    if given is not None and op not in ("where",):
        mask = named or mask | LOW | F32
        bits = (bits & ~ASSUMED) | CAST
        if given.op == "dtype":
            value.anchor = given.args[0].root
            bits |= given.args[0].bits & ASSUMED
    elif table is not None and not value.inplace and tensor:
        if op in table.lower:
            mask, bits = _lowered(mask), bits & ~(ASSUMED | ZERO_DIM)
        elif op in table.float32:
            mask, bits = _raised(mask), bits & ~ASSUMED
        elif op in table.widest and any(item.dtypes == F32 and item.tensor for item in args):
            mask = F32
    elif table is None and op in _OF_ONE_TYPE:
        # Operands of two types would raise, so they are of one, whichever it is.
        mask = _union([item.dtypes & FLOATS for item in args if item.tensor and not item.bits & PARAMETER]) or mask
    if value.inplace and first is not None:
        mask, value.anchor = first.dtypes, first.root
        bits |= first.bits & ZERO_DIM
    if mask & (INT | BOOL) and not value.inplace:
        if op in _FLOATING:
            mask = mask & ~(INT | BOOL) | F32
        elif mask & BOOL and op in _COUNTING:
            mask = mask & ~BOOL | INT
    if op in _FLOATING and not mask & FLOATS:
        mask = F32
    if op in REDUCTIONS:
        tensor = max(tensor, 1)
        bits = bits | ZERO_DIM if _is_of_everything(value) else bits & ~ZERO_DIM
    value.dtypes = mask or OTHER
    value.tensor = tensor
    value.bits = bits
    if value.anchor is None and first is not None and table is None:
        _anchor(value)
    elif value.anchor is None and first is not None and table is not None and op not in table.lower:
        if op not in table.float32:
            _anchor(value)
    fill_interval(value)


def is_complex(value: Value) -> bool:
    """Whether a value is complex for certain: ``1j``, or a tensor that is of none of the types that are told apart."""
    return value.const.__class__ is complex or (value.tensor == 2 and value.dtypes == OTHER)


_REAL_PARTS = frozenset({"abs", "real", "norm", "vector_norm", "matrix_norm"})
"""What gives real numbers of complex ones."""


def _operands(kwargs: dict[str, Value]) -> list[Value]:
    """The tensors among the keyword arguments."""
    return [kwargs[name] for name in ("other", "min", "max", "tensor1", "tensor2") if name in kwargs]


def _elements(value: Value) -> list[Value]:
    """The elements of a list; of several, where it may be one or another."""
    lists = [item for item in alternatives(value) if item.op in ("list", "tuple")]
    return [element for item in lists for element in item.args]


def _number_kind(value: Value) -> int:
    """1 for a whole number of Python, 2 for another, 3 where that is not known; a boolean decides nothing."""
    if value.is_const:
        kind = value.const.__class__
        return 2 if kind is float else 1 if kind is int else 0
    return 1 if value.bits & INTEGRAL else 3


def _with_numbers(op: str, mask: int, numbers: int) -> int:
    """The types of arithmetic between tensors of the types ``mask`` and numbers of Python."""
    if not mask:
        return NUM if op != "where" else (INT if numbers & 1 else 0) | (F32 if numbers & 2 else 0)
    if not mask & (INT | BOOL) or op not in _ARITHMETIC:
        return mask
    whole = mask & ~BOOL | INT if mask & BOOL else mask
    fractional = mask & ~(INT | BOOL) | F32
    return (whole if numbers & 1 else 0) | (fractional if numbers & 2 else 0)


def _lowered(mask: int) -> int:
    """The types after a cast to half, which leaves float64 and integers alone."""
    if mask & (LOW | F32) or not mask & TENSORS:
        return LOW | mask & F64
    return mask & (F64 | INT | BOOL)


def _raised(mask: int) -> int:
    """The types after a cast to float32, which leaves float64 and integers alone."""
    kept = mask & (F64 | INT | BOOL)
    return kept | F32 if mask & (LOW | F32) or not kept else kept


def _is_of_everything(value: Value) -> bool:
    """Whether a reduction is over all elements, so that its result has no dimensions."""
    op, kwargs = value.op, value.kwargs
    if op in _LOSSES:
        reduction = kwargs.get("reduction") if kwargs else None
        return reduction is None or (reduction.is_const and reduction.const in ("mean", "sum"))
    if op in ("dist", "logsumexp", "matrix_norm", "nuclear_norm"):
        return op == "dist"
    if kwargs and ("dim" in kwargs or "axis" in kwargs or "keepdim" in kwargs):
        return False
    dim = value.arg(2 if op in _ORDER_FIRST else 1)
    return dim is None or (dim.is_const and isinstance(dim.const, bool))


def _anchor(value: Value) -> None:
    """Note that the result has the type of its only kind of operand."""
    root: Value | None = None
    for item in value.args:
        if item.dtypes == NUM or not item.tensor:
            continue
        if root is None:
            root = item.root
        elif item.root is not root:
            return
    if root is not None and root.dtypes == value.dtypes:
        value.anchor = root


_LOSSES = frozenset(op for op in REDUCTIONS if op.endswith(("_loss", "_entropy", "_logits")) or op == "kl_div")
_ORDER_FIRST = words("norm vector_norm quantile nanquantile")
"""Reductions whose second argument is not the dimension."""
_ARITHMETIC = words("add sub mul div floordiv mod pow rpow fmod clamp clamp_min clamp_max where xlogy neg abs")
"""Operations in which a number of Python decides between integers and floats."""
_COUNTING = words("sum nansum prod cumsum cumprod")
"""Operations that make integers of booleans."""
_TYPED_BY_POSITION = words("softmax log_softmax softmin sum mean prod cumsum cumprod")
_FLOATING = words(
    """
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sigmoid tanh softmax log_softmax mean var std norm div
    true_divide sin cos tan sinh cosh asin acos atan atan2 asinh acosh atanh erf erfc erfinv logsumexp softplus
    logsigmoid vector_norm logit lgamma digamma sinc xlogy nanmean
    """
)
"""Operations that make floats of integers."""
_SAME_SHAPE = words(
    "contiguous clone detach detach_ alias requires_grad_ data cpu cuda pin_memory share_memory_ squeeze real"
)
"""Views that leave alone what has no dimensions."""


def _keep(value: Value, first: Value) -> None:
    value.dtypes, value.tensor = first.dtypes, first.tensor
    value.bits, value.lo, value.hi = first.bits, first.lo, first.hi
    if first.bits & ZERO_DIM and value.op not in _SAME_SHAPE:
        value.bits &= ~ZERO_DIM
    value.anchor = first.root
    value.data = first.data


def apply_view(value: Value, first: Value) -> None:
    """Fill in what a part of ``first``, or the same in another shape, may be."""
    _keep(value, first)


def cast(value: Value, dtypes: int, like: Value | None = None) -> None:
    """Fill in the result of a conversion of ``value.args[0]``; ``dtypes`` 0 means that it is not known to what."""
    first = value.args[0]
    _keep(value, first)
    value.bits |= first.bits & ZERO_DIM
    value.tensor = max(first.tensor, 1) if first.tensor or first.dtypes != OTHER else first.tensor
    if dtypes:
        value.dtypes = dtypes
        value.bits = (value.bits & ~ASSUMED) | CAST | (like.bits & ASSUMED if like is not None else 0)
        value.anchor = like.root if like is not None else None
    if value.dtypes & (INT | BOOL) == value.dtypes:
        value.bits |= INTEGRAL
