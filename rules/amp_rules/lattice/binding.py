"""Elements of what holds several values, and what assignments, loops and comprehensions give to names."""

from __future__ import annotations

import ast

from amp_rules.lattice import torch_operations as ops
from amp_rules.lattice.abstract_values import (
    F32,
    INF,
    INT,
    INTEGRAL,
    NUM,
    Value,
    constant,
    join,
    overwritten,
)  # fmt: skip
from amp_rules.lattice.frame import Frame, evaluate
from amp_rules.lattice.intervals import fill_chosen
from amp_rules.lattice.operation_names import PAIRS, VIEWS
from amp_rules.lattice.parameter_names import possible_types

_KEPT_ITEMS = 6
"""Items of a list that later ones are joined with: lists of layers or losses hold the same kind of thing throughout."""


EXTREMES = frozenset({"max", "min", "median", "nanmedian"})


def key_of(base: Value, index: Value) -> str:
    """The variable that stands for what was written into a dictionary that the function is given."""
    return f"{base.data}[{index.const!r}]"


def given_by_key(frame: Frame, base: Value, node: ast.AST, key: str) -> Value:
    """What a parameter holds under a name: ``batch["attention_mask"]``, of a type of its own."""
    made = frame.machine.unknown("element", node, key)
    made.args = (base,)
    possible = possible_types(key)
    if possible:
        made.dtypes = (F32 if possible == INT else made.dtypes) | possible
    elif base.tensor:
        made.dtypes = base.dtypes
    elif frame.function is not None and frame.function.is_forward:
        made.dtypes = frame.machine.unknown_float
    made.tensor = max(made.tensor, base.tensor)
    made.bits = base.bits
    return made


def element(frame: Frame, base: Value, node: ast.AST, index: Value | None = None) -> Value:
    """An element or a part of ``base``."""
    if base.op == "layer" and base.args and (base.sym or "").endswith(("ModuleList", "Sequential")):
        base = base.args[0] if base.args[0].op in ("tuple", "list") else Value("list", node, base.args)
    if base.op in ("tuple", "list") and base.args:
        result = base.args[0]
        for item in base.args[1:]:
            result = join(result, item)
        return result
    if gives_pair(base):
        if index is not None and index.is_const and index.const == 1:
            made = Value("getitem", node, (base,), INT, 2, INTEGRAL)
            return made
    if base.tensor:
        made = Value("getitem", node, (base,) if index is None else (base, index))
        ops.apply(made, None) if base.op in VIEWS else _element_of_tensor(made, base)
        return made
    if base.dtypes == NUM:
        return Value("getitem", node, (base,), NUM)
    made = frame.machine.unknown("element", node, base.data if isinstance(base.data, str) else None)
    made.args = (base,)
    return made


def gives_pair(value: Value) -> bool:
    """Whether an operation gives values with their indices, and not one tensor."""
    return value.op in PAIRS or (value.op in EXTREMES and value.tensor > 0 and _over_a_dimension(value))


def _over_a_dimension(value: Value) -> bool:
    """Whether a ``max`` gives values with their indices."""
    dim = value.arg(1, "dim")
    return dim is not None and dim.tensor < 2


def _element_of_tensor(made: Value, base: Value) -> None:
    made.dtypes, made.tensor = base.dtypes, base.tensor
    if base.op == "param" and base.dtypes != NUM:
        # It is no number after all, whatever its name says.
        made.dtypes &= ~NUM
    made.bits, made.lo, made.hi = base.bits, base.lo, base.hi
    if len(made.args) == 2:
        fill_chosen(made)
    made.anchor = base.root
    made.data = base.data if isinstance(base.data, str) else None


def forget_targets(frame: Frame, kept: dict[str, Value]) -> None:
    """Give the variables back as they were before a comprehension; what rules follow in order has gone on."""
    followed = {name: value for name, value in frame.variables.items() if name.startswith("$")}
    frame.variables = {name: value for name, value in kept.items() if not name.startswith("$")} | followed


def bind_generators(frame: Frame, generators: list[ast.comprehension]) -> None:
    """Bind the targets of a comprehension."""
    for item in generators:
        bind(frame, item.target, iterated(frame, evaluate(frame, item.iter), item.iter))
        for test in item.ifs:
            evaluate(frame, test)


def iterated(frame: Frame, value: Value, node: ast.expr) -> Value:
    """What a loop over ``value`` binds in each turn."""
    if value.op == "range":
        made = Value("element", node, (value,), NUM, 0, INTEGRAL)
        made.lo, made.hi = span_of(value)
        return made
    if value.op == "enumerate" and value.args:
        return Value(
            "tuple", node, (Value("element", node, (), NUM, 0, INTEGRAL), iterated(frame, value.args[0], node))
        )
    if value.op == "zip":
        return Value("tuple", node, tuple(iterated(frame, item, node) for item in value.args))
    return element(frame, value, node)


def span_of(counting: Value) -> tuple[float, float]:
    """The numbers between which a ``range`` or ``arange`` counts."""
    ends = counting.args[:2]
    if not ends or (counting.kwargs and ("start" in counting.kwargs or "end" in counting.kwargs)):
        return -INF, INF
    if len(ends) == 1:
        return 0.0, max(0.0, ends[0].hi)
    return min(ends[0].lo, ends[1].lo), max(ends[0].hi, ends[1].hi)


def rebind(frame: Frame, old: Value, new: Value) -> None:
    """After an operation in place, the variables that held the receiver hold the result."""
    for name, value in frame.variables.items():
        if value is old:
            frame.variables[name] = new
    overwritten(old, new)


def put(held: Value, item: Value, index: Value | None = None) -> None:
    """Note that a list or dictionary holds ``item`` as well."""
    if held.op == "list":
        held.args = (*held.args[:_KEPT_ITEMS], item)
        held.data = "appended"
    elif held.data is not None and index is not None and index.is_const:
        old = held.data.get(index.const)
        held.data[index.const] = item if old is None else join(old, item)
    else:
        held.data = None


def bind(frame: Frame, target: ast.expr, value: Value) -> None:
    """Assign ``value`` to a target."""
    if isinstance(target, ast.Name):
        frame.variables[target.id] = value
    elif isinstance(target, (ast.Tuple, ast.List)):
        parts = target.elts
        starred = any(isinstance(item, ast.Starred) for item in parts)
        for index, item in enumerate(parts):
            part: Value
            if isinstance(item, ast.Starred):
                part = Value("list", target)
                item = item.value
            elif value.op in ("tuple", "list") and len(value.args) == len(parts) and not starred and not value.data:
                part = value.args[index]
            elif value.op == "shape":
                part = Value("size", item, (value,), NUM, 0, INTEGRAL)
                part.lo = 0.0
            else:
                part = element(frame, value, item, constant(index, item))
                if value.op in ("tuple", "list") and part.tensor:
                    part = _one_of_them(part, item, index)
            bind(frame, item, part)
    elif isinstance(target, ast.Attribute):
        base = evaluate(frame, target.value)
        if base.op == "self":
            frame.variables[f"self.{target.attr}"] = value
        made = Value("setattr", target, (base, value))
        made.data = target.attr
        frame.machine.show(made, frame)
    elif isinstance(target, ast.Subscript):
        base = evaluate(frame, target.value)
        index_value = evaluate(frame, target.slice)
        made = Value("setitem", target, (base, index_value, value), base.dtypes, base.tensor)
        made.anchor = base.root
        made.inplace = True
        frame.machine.show(made, frame)
        if base.op in ("list", "dict"):
            put(base, value, index_value)
        elif base.op == "param" and isinstance(index_value.const, str):
            _put_by_key(frame, base, target, index_value, value)
        else:
            overwritten(base, value)
    elif isinstance(target, ast.Starred):
        bind(frame, target.value, value)


def _one_of_them(held: Value, node: ast.expr, index: int) -> Value:
    """One of several tensors of which it is only known what any of them is: no two are the same one."""
    made = Value("getitem", node, (held, constant(index, node)), held.dtypes, held.tensor, held.bits)
    made.lo, made.hi, made.anchor = held.lo, held.hi, held.root
    return made


def _put_by_key(frame: Frame, base: Value, target: ast.Subscript, index: Value, value: Value) -> None:
    """Note what is written into a dictionary that the function is given; in a branch, it may not be."""
    name, parents = key_of(base, index), frame.module.module.parents
    owner = parents.get(parents.get(target, target))
    if frame.function is None or owner is not frame.function.node:
        held = frame.variables.get(name)
        value = join(held if held is not None else given_by_key(frame, base, target, index.const), value)
    frame.variables[name] = value
