"""What operations give whose results depend on more than the types of their operands: conversions, factories, parts."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable

from amp_rules.lattice import torch_operations as ops
from amp_rules.lattice.abstract_values import (
    ASSUMED,
    BOOL,
    CAST,
    F32,
    FLOATS,
    INT,
    INTEGRAL,
    LOW,
    NUM,
    OTHER,
    POSITION,
    TENSORS,
    ZERO_DIM,
    Value,
)  # fmt: skip
from amp_rules.lattice.binding import span_of
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.operation_names import (
    CASTS,
    FACTORIES,
    LIKES,
    NEWS,
    PAIRS,
    SPLITS,
)


def _to(frame: Frame, made: Value) -> None:
    """``x.to(dtype | device | other)``, ``x.type(dtype)``."""
    given = (made.kwargs or {}).get("dtype")
    like: Value | None = None
    mask = 0
    for item in [*made.args[1:], *([given] if given is not None else [])]:
        if item.is_const and (isinstance(item.const, (str, bool)) or item.const is None) and made.op == "to":
            continue
        mask = mask or ops.dtype_named(item)
        if mask and item.op == "dtype" and item.args:
            like = item.args[0]
        if not mask and (item.tensor == 2 or _is_named_tensor(frame, item)):
            mask, like = item.dtypes & TENSORS, item
        if not mask and (item.op in ("param", "attr", "name") and _names_a_type(item)):
            mask = LOW | F32
        if not mask and item.tensor and item.dtypes & FLOATS and not _names_a_place(item):
            mask, like = made.args[0].dtypes & TENSORS | item.dtypes & TENSORS, None
    if made.op == "type" and len(made.args) == 1 and given is None:
        made.op, made.dtypes = "dtype", OTHER
        return
    ops.cast(made, mask, like)


def _is_named_tensor(frame: Frame, value: Value) -> bool:
    return value.tensor == 1 and isinstance(value.node, ast.Name) and frame.used_as_tensor(value.node.id)


def _names_a_place(value: Value) -> bool:
    name = value.data if isinstance(value.data, str) else ""
    return any(part in name for part in ("dev", "gpu", "cuda", "rank", "place"))


def _names_a_type(value: Value) -> bool:
    return isinstance(value.data, str) and "dtype" in value.data


def _type_as(frame: Frame, made: Value) -> None:
    like = made.args[1] if len(made.args) > 1 else None
    ops.cast(made, like.dtypes & TENSORS if like is not None else 0, like)


def _convert(frame: Frame, made: Value) -> None:
    ops.cast(made, CASTS[made.op])


def _factory(frame: Frame, made: Value) -> None:
    given = ops.explicit_dtype(made)
    made.tensor = 2
    if given is not None:
        made.dtypes = ops.dtype_named(given) or LOW | F32
        made.bits |= CAST
        if given.op == "dtype":
            made.anchor = given.args[0].root
            made.bits |= given.args[0].bits & ASSUMED
    elif made.op in ("arange", "range"):
        floating = any(item.is_const and isinstance(item.const, float) for item in made.args)
        made.dtypes = F32 if floating or made.op == "range" else INT
    elif made.op in ("randint", "randperm"):
        made.dtypes = INT
    elif made.op in ("tensor", "as_tensor", "full", "scalar_tensor"):
        made.dtypes = _type_of_data(made)
    elif made.op == "from_numpy":
        made.dtypes = LOW | F32 | INT | BOOL
    else:
        made.dtypes = F32
    if made.op in ("arange", "range"):
        made.bits |= POSITION | (INTEGRAL if made.dtypes == INT else 0)
        made.lo, made.hi = span_of(made)
    if made.op in ("tensor", "as_tensor") and made.args:
        first = made.args[0]
        if first.dtypes == NUM and first.op not in ("tuple", "list"):
            made.bits |= ZERO_DIM
        made.lo, made.hi = first.lo, first.hi
    elif made.op == "full" and len(made.args) > 1:
        made.lo, made.hi = made.args[1].lo, made.args[1].hi
    elif made.op == "linspace" and len(made.args) > 1:
        ends = made.args[:2]
        made.lo, made.hi = min(item.lo for item in ends), max(item.hi for item in ends)
    if made.op in _BY_SHAPE and made.args and made.args[0].op in ("tuple", "list") and not made.args[0].args:
        made.bits |= ZERO_DIM
    if made.op in ("zeros", "ones", "rand", "eye"):
        made.lo, made.hi = (1.0 if made.op == "ones" else 0.0), (0.0 if made.op == "zeros" else 1.0)


_BY_SHAPE = frozenset({"zeros", "ones", "empty", "full", "rand", "randn"})


def _type_of_data(made: Value) -> int:
    data = made.args[1] if made.op == "full" and len(made.args) > 1 else made.args[0] if made.args else None
    if data is None:
        return F32
    items = _leaves(data)
    if all(item.is_const and isinstance(item.const, bool) for item in items):
        return BOOL
    if all(item.is_const and isinstance(item.const, int) for item in items):
        return INT
    if all(item.is_const and isinstance(item.const, (int, float)) for item in items):
        return F32
    if data.tensor:
        return data.dtypes
    return F32 | INT


def _leaves(data: Value) -> list[Value]:
    """The numbers of nested lists."""
    if data.op in ("tuple", "list") and data.args and data.data is None:
        return [leaf for item in data.args for leaf in _leaves(item)]
    return [data]


def _like(frame: Frame, made: Value) -> None:
    given = ops.explicit_dtype(made)
    first = made.args[0] if made.args else None
    made.tensor = 2
    if given is not None:
        made.dtypes = ops.dtype_named(given) or LOW | F32
        made.bits |= CAST
    elif first is not None:
        made.dtypes = first.dtypes & TENSORS or LOW | F32
        made.anchor = first.root
        made.bits |= first.bits & ASSUMED
    if made.op in ("zeros_like", "new_zeros"):
        made.lo = made.hi = 0.0
    elif made.op in ("ones_like", "new_ones"):
        made.lo = made.hi = 1.0
    elif made.op == "rand_like":
        made.lo, made.hi = 0.0, 1.0


def _split(frame: Frame, made: Value) -> None:
    if not made.args:
        return  # `torch.split(tensor=x, ...)`
    first = made.args[0]
    if first.op in ("tuple", "list"):
        made.op, made.args = "list", first.args
        return
    ops.apply_view(made, first)


def _pair(frame: Frame, made: Value) -> None:
    if made.args:
        ops.apply_view(made, made.args[0])


def _no_number(frame: Frame, made: Value) -> None:
    made.dtypes = OTHER


def _numpy(frame: Frame, made: Value) -> None:
    made.dtypes, made.tensor = OTHER, 0


def _embedding(frame: Frame, made: Value) -> None:
    table = made.arg(1, "weight")
    made.dtypes, made.tensor = (table.dtypes & FLOATS if table is not None else 0) or LOW | F32, 2
    if table is not None:
        made.bits, made.anchor = table.bits & ASSUMED, table.root


def _pad(frame: Frame, made: Value) -> None:
    ops.apply(made, None)
    kind = made.arg(2, "mode")
    constant = kind is None or (kind.is_const and kind.const == "constant")
    if frame.autocast and frame.mode.device == "cpu" and not constant and made.dtypes & LOW:
        # Reflections are float32 to the CPU, but for some numbers of dimensions.
        made.dtypes, made.anchor = made.dtypes | F32, None


def _einsum(frame: Frame, made: Value) -> None:
    # With a single operand it is a sum to the CPU, and no product that would be cast.
    alone = len(made.args) == 2 and frame.mode.device == "cpu"
    ops.apply(made, frame.machine.table if frame.autocast and not alone else None)


def _recurrent(frame: Frame, made: Value) -> None:
    ops.apply(made, frame.machine.table if frame.autocast else None)
    made.tensor = 2
    if not frame.autocast and made.args and made.args[0].tensor:
        # A state of another type would raise.
        made.dtypes = made.args[0].dtypes


def _view(frame: Frame, made: Value) -> None:
    """``x.view(shape)``, or ``x.view(dtype)``: the same bits as numbers of another type."""
    given = made.arg(1, "dtype")
    mask = ops.dtype_named(given) if len(made.args) <= 2 else 0
    ops.apply_view(made, made.args[0])
    if mask:
        made.dtypes, made.anchor, made.lo, made.hi = mask, None, -math.inf, math.inf


RESULTS_OF: dict[str, Callable[[Frame, Value], None]] = {
    "view": _view,
    "to": _to,
    "type": _to,
    "type_as": _type_as,
    **{name: _convert for name in CASTS},
    **{name: _factory for name in FACTORIES if not name[0].isupper()},
    **{name: _like for name in LIKES | NEWS},
    **{name: _split for name in SPLITS},
    **{name: _pair for name in PAIRS},
    "embedding": _embedding,
    "embedding_bag": _embedding,
    "einsum": _einsum,
    "pad": _pad,
    "finfo": _no_number,
    "backward": _no_number,
    "numpy": _numpy,
    **{name: _recurrent for name in ("lstm", "gru", "rnn", "lstm_cell", "gru_cell", "rnn_tanh_cell")},
}
