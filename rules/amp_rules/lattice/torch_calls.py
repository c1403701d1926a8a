"""Evaluates calls of torch's functions: operations on tensors, and what makes layers, types and contexts."""

from __future__ import annotations

import ast

from amp_rules.lattice import torch_operations as ops
from amp_rules.lattice.abstract_values import (
    F32,
    INT,
    LOW,
    NUM,
    OTHER,
    TENSORS,
    Value,
    overwritten,
)  # fmt: skip
from amp_rules.lattice.binding import rebind
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.half_precision import fate
from amp_rules.lattice.operation_names import (
    BOOLEANS,
    DTYPES,
    ELEMENTWISE,
    INTEGERS,
    NUMBERS,
    OF_TWO,
    REDUCTIONS,
    RENAMED,
    SHARED_METHODS,
    VIEWS,
)
from amp_rules.lattice.result_evaluators import RESULTS_OF
from amp_rules.torch.half_precision import NO_KERNEL_ANYWHERE
from amp_rules.torch.mixed_precision import AUTOCASTS

_KNOWN = VIEWS | ELEMENTWISE | REDUCTIONS | INTEGERS | BOOLEANS | NUMBERS


_BOTH = {"var_mean": ("var", "mean"), "std_mean": ("std", "mean")}
"""Functions that give the results of two."""


_RESULTS = {
    "one_hot": INT, "is_tensor": NUM, "is_storage": NUM, "is_grad_enabled": NUM, "is_complex": NUM, "numel": NUM,
    "is_autocast_enabled": NUM, "view_as_complex": OTHER, "complex": OTHER, "polar": OTHER, "seed": NUM,
    "initial_seed": NUM, "get_num_threads": NUM, "promote_types": OTHER,
}  # fmt: skip
"""What functions give whose result is not a float of any type."""


def operation(
    frame: Frame,
    node: ast.AST,
    name: str,
    args: tuple[Value, ...],
    kwargs: dict[str, Value] | None,
    inplace: bool,
    layer: Value | None = None,
) -> Value:
    """The result of an operation on tensors; rules are shown the ``layer`` that it is as its data."""
    op = RENAMED.get(name, name)
    if kwargs and len(args) == 1 and op in OF_TWO and "other" in kwargs:
        args = (*args, kwargs["other"])
    made = Value(op, node, args)
    made.kwargs = kwargs
    made.inplace = inplace
    if kwargs and "out" in kwargs:
        made.inplace = True
    special = RESULTS_OF.get(op)
    if special is not None:
        special(frame, made)
    else:
        ops.apply(made, frame.machine.table if frame.autocast else None)
        if made.tensor == 1 and op not in SHARED_METHODS:
            made.tensor = 2
    if made.dtypes & LOW and op in NO_KERNEL_ANYWHERE and fate(op, frame.mode, frame.autocast) == "no kernel":
        # It raises for half tensors: where it gave something, that is float32.
        made.dtypes, made.anchor = made.dtypes & ~LOW or F32, None
    if layer is not None:
        made.data = layer
    frame.machine.show(made, frame)
    if made.inplace and args:
        rebind(frame, args[0] if inplace or not kwargs else kwargs["out"], made)
    return made


def of_torch(frame: Frame, node: ast.Call, name: str, args: list[Value], kwargs: dict[str, Value] | None) -> Value:
    """A call of something of torch, by its dotted name."""
    head, _, last = name.rpartition(".")
    if head in ("torch", "torch.nn.functional", "torch.special", "torch.linalg", "torch.Tensor", "torch.fft"):
        inplace = last.endswith("_") and not last.startswith("_")
        plain = last[:-1] if inplace else last
        known = RENAMED.get(plain, plain)
        if known in RESULTS_OF or known in _KNOWN:
            given = tuple(args)
            if kwargs and "input" in kwargs:
                given = (kwargs["input"], *given)
            for item in given[:1]:
                is_one(item)
            made = operation(frame, node, plain, given, kwargs, inplace)
            if made.dtypes & TENSORS and known not in NUMBERS:
                made.tensor = 2
            if head == "torch.fft":
                # Complex numbers, of which nothing else is known.
                made.dtypes, made.tensor = (LOW | F32 if last.startswith(("irfft", "hfft")) else OTHER), 2
            return made
        if last in _BOTH:
            parts = [operation(frame, node, part, tuple(args), kwargs, False) for part in _BOTH[last]]
            return Value("tuple", node, tuple(parts))
        if last[:1].isupper() or last in ("from_numpy", "load"):
            return _construct_torch(frame, node, name, args, kwargs)
        dtypes = _RESULTS.get(last, frame.machine.unknown_any)
        made = Value("call", node, tuple(args), dtypes, 0 if dtypes == NUM or last == "promote_types" else 2)
        made.sym, made.kwargs, made.op = None, kwargs, last
        if last == "one_hot":
            made.lo, made.hi = 0.0, 1.0
        made.data = name
        frame.machine.show(made, frame)
        return made
    return _construct_torch(frame, node, name, args, kwargs)


def _construct_torch(
    frame: Frame, node: ast.Call, name: str, args: list[Value], kwargs: dict[str, Value] | None
) -> Value:
    last = name.rpartition(".")[2]
    made: Value
    if name in ("torch.nn.Parameter", "torch.nn.parameter.Parameter"):
        made = frame.machine.parameter(node, args[0] if args else None)
        made.kwargs = kwargs
    elif name in DTYPES:
        made = Value("typed_tensor", node, tuple(args), DTYPES[name], 2)
        made.data = name
    elif name.startswith("torch.nn.") and last[:1].isupper():
        made = Value("layer", node, tuple(args))
        made.sym = name
        made.kwargs = kwargs
    elif name == "torch.finfo":
        made = Value("finfo", node, tuple(args))
    elif name in AUTOCASTS:
        made = Value("autocast", node, tuple(args))
        made.kwargs = kwargs
    elif name.startswith("torch.nn.init.") and args:
        overwritten(args[0], None)
        made = Value("call", node, tuple(args), args[0].dtypes, args[0].tensor)
        made.anchor = args[0].root
        made.data = name
    else:
        made = Value("call", node, tuple(args), OTHER)
        if name.startswith("torch.nn.utils."):
            made.dtypes, made.tensor = frame.machine.unknown_any | OTHER, 1
        made.data = name
        made.kwargs = kwargs
    frame.machine.show(made, frame)
    return made


def is_one(value: Value) -> None:
    """Note that what may be a tensor is one: only tensors can be used like this."""
    if value.tensor == 1:
        value.tensor = 2
        value.dtypes = value.dtypes & TENSORS or value.dtypes
