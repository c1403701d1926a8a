"""Evaluates calls: finds out what is called, and hands on to what evaluates calls of that kind."""

from __future__ import annotations

import ast

from amp_rules.lattice.abstract_values import (
    F32,
    LOW,
    NUM,
    OTHER,
    TENSORS,
    Value,
    constant,
    overwritten,
)  # fmt: skip
from amp_rules.lattice.binding import element, put
from amp_rules.lattice.builtin_calls import of_builtins, of_math
from amp_rules.lattice.expression_evaluators import attribute_of
from amp_rules.lattice.frame import Frame, evaluate
from amp_rules.lattice.layer_calls import call_object, is_some_layer, like_a_layer
from amp_rules.lattice.operation_names import (
    DTYPES,
    OF_TWO,
    SHARED_METHODS,
    TENSOR_METHODS,
)
from amp_rules.lattice.project_calls import applied, construct, like_its_arguments, of_project, unfollowed, unknown_call
from amp_rules.lattice.torch_calls import is_one, of_torch, operation
from amp_rules.source.facts import ClassFacts, FunctionFacts


def call(frame: Frame, node: ast.Call) -> Value:
    """What a call gives."""
    function = node.func
    args: list[Value] = []
    open_ended = False
    kwargs: dict[str, Value] | None = None
    if isinstance(function, ast.Attribute):
        receiver = evaluate(frame, function.value)
        if receiver.sym is None or receiver.op in ("instance", "layer"):
            for item in node.args:
                args.append(evaluate(frame, item))
            kwargs = _keywords(frame, node)
            return _method(frame, node, receiver, function.attr, args, kwargs)
        target = attribute_of(frame, receiver, function)
    else:
        target = evaluate(frame, function)
    for item in node.args:
        if item.__class__ is ast.Starred:
            open_ended = True
        args.append(evaluate(frame, item))
    kwargs = _keywords(frame, node)
    if target.op == "function" and target.data is not None:
        return of_project(frame, node, target.data, args, kwargs, None, open_ended)
    if target.op == "class":
        return construct(frame, node, target.data, args, kwargs)
    if target.op in ("layer", "instance") or is_some_layer(target):
        return call_object(frame, node, target, args, kwargs)
    if target.sym is not None:
        return _named(frame, node, target.sym, args, kwargs)
    if target.op == "lambda" and isinstance(target.node, ast.Lambda):
        return frame.machine.run_lambda(frame, target, args, node)
    if target.op == "partial" and not open_ended:
        made = applied(frame, node, target, args, kwargs)
        if made is not None:
            return made
    return unknown_call(frame, node, target, args, kwargs)


def _keywords(frame: Frame, node: ast.Call) -> dict[str, Value] | None:
    if not node.keywords:
        return None
    found = {}
    for item in node.keywords:
        value = evaluate(frame, item.value)
        if item.arg is not None:
            found[item.arg] = value
    return found


# ---- methods -----------------------------------------------------------------------------------------------------


def _method(
    frame: Frame, node: ast.Call, receiver: Value, name: str, args: list[Value], kwargs: dict[str, Value] | None
) -> Value:
    if receiver.op == "self":
        return _method_of_self(frame, node, receiver, name, args, kwargs)
    if receiver.op == "super":
        return _method_of_super(frame, node, receiver, name, args, kwargs)
    if receiver.op == "instance" and isinstance(receiver.data, ClassFacts):
        item = receiver.data.method(name)
        if item is not None:
            return of_project(frame, node, item, args, kwargs, receiver)
    if receiver.op == "layer" and name in ("to", "cuda", "half", "float", "eval", "train", "bfloat16", "cpu"):
        made = Value(f"layer_{name}", node, (receiver, *args), kwargs=kwargs)
        frame.machine.show(made, frame)
        return receiver
    inplace = name.endswith("_") and not name.startswith("_")
    plain = name[:-1] if inplace and name != "requires_grad_" else name
    if (
        (receiver.tensor or receiver.dtypes & TENSORS)
        and plain in TENSOR_METHODS
        and (args or kwargs or plain not in OF_TWO)
    ):
        if plain not in SHARED_METHODS:
            is_one(receiver)
        if plain == "where" and len(args) == 2:
            return operation(frame, node, plain, (args[0], receiver, args[1]), kwargs, inplace)
        return operation(frame, node, plain, (receiver, *args), kwargs, inplace)
    if receiver.op == "list" and args:
        if name in ("append", "add", "insert"):
            put(receiver, args[-1])
        elif name == "extend":
            put(receiver, element(frame, args[0], node))
    elif inplace and receiver.tensor:
        overwritten(receiver, None)
    made = frame.machine.unknown("method", node, name)
    made.args = (receiver, *args)
    made.kwargs = kwargs
    made.dtypes |= NUM | OTHER | F32 | LOW
    if receiver.tensor == 2 and receiver.low:
        like_its_arguments(frame, made, node, [receiver, *args])
    frame.machine.show(made, frame)
    return made


def _method_of_super(
    frame: Frame, node: ast.Call, receiver: Value, name: str, args: list[Value], kwargs: dict[str, Value] | None
) -> Value:
    """A method of a base class; constructors are looked at where somebody asks for what they leave."""
    function = frame.function
    cls = function.cls if function is not None else None
    if function is None or cls is None or name == "__init__":
        return unfollowed(frame, node, receiver, args, kwargs)
    item = next((base.methods[name] for base in cls.lineage[1:] if name in base.methods), None)
    if item is not None:
        held = frame.variables.get(function.receiver or "")
        return of_project(frame, node, item, args, kwargs, held)
    made = unfollowed(frame, node, receiver, args, kwargs)
    if name == "forward" and cls.is_module and any(given.tensor for given in args):
        like_a_layer(frame, made, args)
    return made


def _method_of_self(
    frame: Frame, node: ast.Call, receiver: Value, name: str, args: list[Value], kwargs: dict[str, Value] | None
) -> Value:
    cls = receiver.data if isinstance(receiver.data, ClassFacts) else None
    item = cls.method(name) if cls is not None else None
    if item is not None:
        return of_project(frame, node, item, args, kwargs, receiver)
    if name in ("register_buffer", "register_parameter") and args and isinstance(args[0].const, str):
        frame.machine.register(frame, node, args[0].const, name, args[1] if len(args) > 1 else None)
        return constant(None, node)
    held = frame.machine.attribute_of_self(frame, receiver, name, node)
    if held.op in ("layer", "instance") or is_some_layer(held):
        return call_object(frame, node, held, args, kwargs)
    if held.op == "function" and isinstance(held.data, FunctionFacts):
        return of_project(frame, node, held.data, args, kwargs, None)
    if held.sym is not None:
        return _named(frame, node, held.sym, args, kwargs)
    made = unknown_call(frame, node, held, args, kwargs)
    if any(item.tensor for item in args) and (cls is None or cls.is_module):
        like_a_layer(frame, made, args)
    return made


# ---- names -------------------------------------------------------------------------------------------------------


def _named(frame: Frame, node: ast.Call, name: str, args: list[Value], kwargs: dict[str, Value] | None) -> Value:
    """A call of something that is known by its dotted name."""
    if name in _CHECKPOINTS and args:
        made = _through(frame, node, args[0], args[1:])
        if made is not None:
            return made
    if name.startswith("torch."):
        return of_torch(frame, node, name, args, kwargs)
    if name.startswith("builtins."):
        return of_builtins(frame, node, name[9:], args, kwargs)
    if name.startswith("math."):
        return of_math(node, name[5:], args)
    if name == "numpy.finfo":
        return Value("finfo", node, tuple(map(_as_of_torch, args)))
    if name.startswith("numpy."):
        made = Value("numpy", node, tuple(args), NUM | OTHER)
        made.data = name
        made.kwargs = kwargs
        frame.machine.show(made, frame)
        return made
    if name == "functools.partial" and args and args[0].op in ("lambda", "function"):
        return Value("partial", node, tuple(args), kwargs=kwargs)
    if name.startswith("einops."):
        first = args[0] if args else None
        if first is not None and name in ("einops.rearrange", "einops.repeat"):
            first.tensor = max(first.tensor, 1)
            return operation(frame, node, "rearrange", tuple(args), kwargs, False)
        if name == "einops.einsum":
            return operation(frame, node, "einsum", tuple(args), kwargs, False)
    heard = frame.machine.heard is not None
    follow = heard or frame.machine.worth_running(args, kwargs) or frame.machine.worth_following(name)
    found = frame.machine.project.resolve(frame.module, name) if follow else None
    if isinstance(found, FunctionFacts):
        return of_project(frame, node, found, args, kwargs, None)
    if isinstance(found, ClassFacts):
        return construct(frame, node, found, args, kwargs)
    target = Value("name", node.func)
    target.sym = name
    return unknown_call(frame, node, target, args, kwargs)


def _as_of_torch(given: Value) -> Value:
    """A type of numpy by torch's name; Python's ``float`` is a double to numpy."""
    name = given.sym or ""
    known = _TYPES_OF_NUMPY.get(name) or name.replace("numpy.", "torch.")
    if known == name or known not in DTYPES:
        return given
    made = Value("name", given.node)
    made.sym = known
    return made


_TYPES_OF_NUMPY = {
    "builtins.float": "torch.float64", "numpy.float": "torch.float64", "numpy.float_": "torch.float64",
    "numpy.single": "torch.float32",
}  # fmt: skip

_CHECKPOINTS = frozenset({"torch.utils.checkpoint.checkpoint"})


def _through(frame: Frame, node: ast.Call, target: Value, args: list[Value]) -> Value | None:
    """What a function, layer or object of the project gives where another function calls it."""
    if target.op in ("layer", "instance") or is_some_layer(target):
        return call_object(frame, node, target, args, None)
    return applied(frame, node, target, args, None)
