"""Evaluates calls of Python's own functions, and of those of ``math``."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable

from amp_rules.lattice.abstract_values import (
    BOOL,
    ELEMENTWISE_BITS,
    INT,
    INTEGRAL,
    NUM,
    OTHER,
    ZERO_DIM,
    Value,
    constant,
    join,
    promote,
)  # fmt: skip
from amp_rules.lattice.binding import element
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.intervals import INTERVALS
from amp_rules.lattice.project_calls import applied
from amp_rules.lattice.torch_calls import operation


def of_builtins(frame: Frame, node: ast.Call, name: str, args: list[Value], kwargs: dict[str, Value] | None) -> Value:
    """What a function of Python's own gives, by its name."""
    first = args[0] if args else None
    if name in ("float", "int") and first is not None:
        if first.is_const:
            try:
                return constant(float(first.const) if name == "float" else int(first.const), node)
            except (TypeError, ValueError, OverflowError):
                pass
        return Value("item", node, tuple(args), NUM)
    if name in ("max", "min") and args and all(item.number is not None for item in args) and len(args) > 1:
        numbers = [item.number for item in args if item.number is not None]
        return constant(max(numbers) if name == "max" else min(numbers), node)
    if name in ("max", "min") and len(args) > 1:
        made = Value(f"builtin_{name}", node, tuple(args), NUM if all(i.dtypes == NUM for i in args) else OTHER | NUM)
        INTERVALS[name + "imum"](made)
        return made
    if name == "abs" and first is not None and first.tensor:
        return operation(frame, node, "abs", tuple(args), kwargs, False)
    if name == "sum" and first is not None:
        made = Value("builtin_sum", node, tuple(args))
        items = first.args if first.op in ("list", "tuple") and first.args else (first,)
        for item in items:
            before = made.dtypes if item is not items[0] else item.dtypes
            made.dtypes = promote(before, item.dtypes)
            if any(other.bits & ZERO_DIM for other in items):
                made.dtypes |= before | item.dtypes
            made.tensor, made.bits = max(made.tensor, item.tensor), item.bits & ELEMENTWISE_BITS
        if made.dtypes & BOOL:
            # It begins with 0.
            made.dtypes = made.dtypes & ~BOOL | INT
        if first.op not in ("list", "tuple"):
            made.dtypes |= NUM
        frame.machine.show(made, frame)
        return made
    if name == "pow" and len(args) == 2 and first is not None and first.tensor:
        return operation(frame, node, "pow", tuple(args), kwargs, False)
    if name == "len":
        made = Value("len", node, tuple(args), NUM, 0, INTEGRAL)
        made.lo = 0.0
        return made
    if name == "super":
        return Value("super", node)
    if name in ("range", "enumerate", "zip"):
        return Value(name, node, tuple(args))
    if name == "next" and first is not None and _gives_parameters(first):
        return frame.machine.parameter(node, None)
    if name in ("list", "tuple", "reversed", "sorted", "iter", "next", "set", "frozenset") and first is not None:
        return first
    if name == "map" and len(args) == 2 and args[0].op in ("lambda", "function", "partial"):
        return _mapped(frame, node, args[0], args[1])
    if name == "getattr" and len(args) >= 2:
        made = frame.machine.unknown("attr", node, None)
        return join(made, args[2]) if len(args) > 2 else made
    return Value("call", node, tuple(args), NUM | OTHER)


def of_math(node: ast.Call, name: str, args: list[Value]) -> Value:
    """What a function of ``math`` gives: a number that is known, where it is given known numbers."""
    function: Callable[..., float] | None = getattr(math, name, None)
    numbers = [item.number for item in args]
    known = [number for number in numbers if number is not None and math.isfinite(number)]
    if function is not None and known and len(known) == len(numbers):
        try:
            return constant(function(*known), node)
        except (ValueError, OverflowError, TypeError):
            pass
    return Value("math", node, tuple(args), NUM)


def _gives_parameters(value: Value) -> bool:
    """Whether a value is the weights of a module, as ``parameters()`` gives them."""
    asked = value if value.op == "method" else value.args[0] if value.op == "call" and value.args else None
    return asked is not None and asked.data.__class__ is str and asked.data == "parameters"


def _mapped(frame: Frame, node: ast.Call, function: Value, items: Value) -> Value:
    """``map`` of a function of the file over a tuple, or over the parts of a tensor."""
    if items.op in ("tuple", "list") and items.data is None:
        found = [applied(frame, node, function, [item], None) for item in items.args]
        results = tuple(item if item is not None else frame.machine.unknown("call", node, None) for item in found)
        return Value("tuple", node, results)
    result = applied(frame, node, function, [element(frame, items, node)], None)
    made = Value("list", node, (result if result is not None else frame.machine.unknown("call", node, None),))
    made.data = "comprehension"
    return made
