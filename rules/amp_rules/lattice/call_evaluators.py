"""Evaluates calls: operations of torch, layers, conversions, the project's own functions."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable

from amp_rules.lattice import torch_operations as ops
from amp_rules.lattice.abstract_values import (
    ASSUMED,
    BOOL,
    ELEMENTWISE_BITS,
    F32,
    FLOATS,
    INT,
    INTEGRAL,
    LOW,
    NUM,
    OTHER,
    TENSORS,
    ZERO_DIM,
    Value,
    constant,
    join,
    overwritten,
    promote,
)  # fmt: skip
from amp_rules.lattice.binding import element, put, rebind
from amp_rules.lattice.expression_evaluators import attribute_of
from amp_rules.lattice.frame import Frame, evaluate
from amp_rules.lattice.half_precision import fate
from amp_rules.lattice.intervals import INTERVALS
from amp_rules.lattice.operation_names import (
    BOOLEANS,
    DTYPES,
    ELEMENTWISE,
    INTEGERS,
    MODULES,
    NUMBERS,
    OF_TWO,
    REDUCTIONS,
    RENAMED,
    SHARED_METHODS,
    TENSOR_METHODS,
    VIEWS,
)
from amp_rules.lattice.result_evaluators import RESULTS_OF
from amp_rules.source.facts import ClassFacts, FunctionFacts
from amp_rules.source.syntax import last_name
from amp_rules.torch.half_precision import NO_KERNEL_ANYWHERE
from amp_rules.torch.idioms import NAMED_RESHAPE
from amp_rules.torch.mixed_precision import AUTOCASTS


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
        return _of_project(frame, node, target.data, args, kwargs, None, open_ended)
    if target.op == "class":
        return _construct(frame, node, target.data, args, kwargs)
    if target.op in ("layer", "instance") or _is_some_layer(target):
        return call_object(frame, node, target, args, kwargs)
    if target.sym is not None:
        return _named(frame, node, target.sym, args, kwargs)
    if target.op == "lambda" and isinstance(target.node, ast.Lambda):
        return frame.machine.run_lambda(frame, target, args, node)
    if target.op == "partial" and not open_ended:
        made = _applied(frame, node, target, args, kwargs)
        if made is not None:
            return made
    return _unknown(frame, node, target, args, kwargs)


def _keywords(frame: Frame, node: ast.Call) -> dict[str, Value] | None:
    if not node.keywords:
        return None
    found = {}
    for item in node.keywords:
        value = evaluate(frame, item.value)
        if item.arg is not None:
            found[item.arg] = value
    return found


def _unknown(frame: Frame, node: ast.Call, target: Value, args: list[Value], kwargs: dict[str, Value] | None) -> Value:
    made = frame.machine.unknown("call", node, None)
    made.args = (target, *args)
    made.kwargs = kwargs
    made.dtypes |= NUM | OTHER | F32 | LOW
    _like_its_arguments(frame, made, node, args)
    frame.machine.show(made, frame)
    return made


def _like_its_arguments(frame: Frame, made: Value, node: ast.Call, args: list[Value]) -> None:
    """A function that nothing is known of gives half tensors where it is given nothing but such.

    Under autocast only one that moves elements, by its name: within others operations may be cast to float32.
    """
    floats = [item for item in args if item.tensor and item.dtypes & FLOATS]
    if not floats or not all(item.low for item in floats):
        return
    if frame.autocast and not NAMED_RESHAPE.search((last_name(node.func) or "").lower()):
        return
    made.dtypes, made.tensor = LOW, 1
    made.bits |= floats[0].bits & ASSUMED


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
            return _of_project(frame, node, item, args, kwargs, receiver)
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
            _is_one(receiver)
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
        _like_its_arguments(frame, made, node, [receiver, *args])
    frame.machine.show(made, frame)
    return made


def _method_of_super(
    frame: Frame, node: ast.Call, receiver: Value, name: str, args: list[Value], kwargs: dict[str, Value] | None
) -> Value:
    """A method of a base class; constructors are looked at where somebody asks for what they leave."""
    function = frame.function
    cls = function.cls if function is not None else None
    if function is None or cls is None or name == "__init__":
        return _unfollowed(frame, node, receiver, args, kwargs)
    item = next((base.methods[name] for base in cls.lineage[1:] if name in base.methods), None)
    if item is not None:
        held = frame.variables.get(function.receiver or "")
        return _of_project(frame, node, item, args, kwargs, held)
    made = _unfollowed(frame, node, receiver, args, kwargs)
    if name == "forward" and cls.is_module and any(given.tensor for given in args):
        _like_a_layer(frame, made, args)
    return made


def _is_one(value: Value) -> None:
    """Note that what may be a tensor is one: only tensors can be used like this."""
    if value.tensor == 1:
        value.tensor = 2
        value.dtypes = value.dtypes & TENSORS or value.dtypes


def _method_of_self(
    frame: Frame, node: ast.Call, receiver: Value, name: str, args: list[Value], kwargs: dict[str, Value] | None
) -> Value:
    cls = receiver.data if isinstance(receiver.data, ClassFacts) else None
    item = cls.method(name) if cls is not None else None
    if item is not None:
        return _of_project(frame, node, item, args, kwargs, receiver)
    if name in ("register_buffer", "register_parameter") and args and isinstance(args[0].const, str):
        frame.machine.register(frame, node, args[0].const, name, args[1] if len(args) > 1 else None)
        return constant(None, node)
    held = frame.machine.attribute_of_self(frame, receiver, name, node)
    if held.op in ("layer", "instance") or _is_some_layer(held):
        return call_object(frame, node, held, args, kwargs)
    if held.op == "function" and isinstance(held.data, FunctionFacts):
        return _of_project(frame, node, held.data, args, kwargs, None)
    if held.sym is not None:
        return _named(frame, node, held.sym, args, kwargs)
    made = _unknown(frame, node, held, args, kwargs)
    if any(item.tensor for item in args) and (cls is None or cls.is_module):
        _like_a_layer(frame, made, args)
    return made


def _like_a_layer(frame: Frame, made: Value, args: list[Value]) -> None:
    """A module that nothing is known of takes activations and gives activations."""
    made.op = "module"
    made.dtypes = frame.machine.unknown_float
    made.tensor = 1
    made.bits = ASSUMED


def _is_some_layer(value: Value) -> bool:
    """Whether a value is one of several layers, or a layer or nothing."""
    return value.op == "join" and any(item.op in ("layer", "instance") for item in value.args)


_MAX_LAYERS = 4
"""Of a layer that is one of several, so many are called: what the others would give is of the same types."""


def call_object(frame: Frame, node: ast.Call, held: Value, args: list[Value], kwargs: dict[str, Value] | None) -> Value:
    """Call a layer of torch, or an object of a class of the project."""
    if held.op == "join":
        results = [call_object(frame, node, item, args, kwargs) for item in held.args[:_MAX_LAYERS]]
        for other in results[1:]:
            results[0] = join(results[0], other)
        return results[0]
    if held.op == "layer":
        op = MODULES.get(held.sym.rpartition(".")[2]) if held.sym else None
        if op is not None:
            given = (*args, frame.machine.parameter(node, held)) if op in _HOLD_A_TABLE else tuple(args)
            return operation(frame, node, op, given, _settings(held), False, held)
        if held.sym and held.sym.endswith(("Sequential", "ModuleList")) and held.args and args:
            return _sequential(frame, node, held, args[0])
    elif isinstance(held.data, ClassFacts):
        method = held.data.method("forward") or held.data.method("__call__")
        heard = frame.machine.heard is not None
        if method is not None and (heard or frame.machine.worth_running(args, kwargs)):
            return _of_project(frame, node, method, args, kwargs, held)
    made = _unknown(frame, node, held, args, kwargs)
    _like_a_layer(frame, made, args)
    return made


_HOLD_A_TABLE = frozenset({"embedding", "embedding_bag", "bilinear"})


def _settings(layer: Value) -> dict[str, Value] | None:
    """The arguments of a layer that its operation has as well."""
    if not layer.kwargs:
        return None
    return {name: layer.kwargs[name] for name in ("dim", "reduction") if name in layer.kwargs} or None


def _sequential(frame: Frame, node: ast.Call, held: Value, given: Value) -> Value:
    value = given
    for item in held.args:
        if item.op == "starred" or item.op not in ("layer", "instance"):
            value = frame.machine.unknown("module", node, None)
            value.dtypes, value.tensor, value.bits = frame.machine.unknown_float, 1, ASSUMED
            continue
        value = call_object(frame, node, item, [value], None)
    return value


# ---- operations of torch -----------------------------------------------------------------------------------------


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


def _named(frame: Frame, node: ast.Call, name: str, args: list[Value], kwargs: dict[str, Value] | None) -> Value:
    """A call of something that is known by its dotted name."""
    if name in _CHECKPOINTS and args:
        made = _through(frame, node, args[0], args[1:])
        if made is not None:
            return made
    if name.startswith("torch."):
        return _of_torch(frame, node, name, args, kwargs)
    if name.startswith("builtins."):
        return _builtin(frame, node, name[9:], args, kwargs)
    if name.startswith("math."):
        return _of_math(node, name[5:], args)
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
        return _of_project(frame, node, found, args, kwargs, None)
    if isinstance(found, ClassFacts):
        return _construct(frame, node, found, args, kwargs)
    target = Value("name", node.func)
    target.sym = name
    return _unknown(frame, node, target, args, kwargs)


def _of_torch(frame: Frame, node: ast.Call, name: str, args: list[Value], kwargs: dict[str, Value] | None) -> Value:
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
                _is_one(item)
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


_BOTH = {"var_mean": ("var", "mean"), "std_mean": ("std", "mean")}
"""Functions that give the results of two."""

_RESULTS = {
    "one_hot": INT, "is_tensor": NUM, "is_storage": NUM, "is_grad_enabled": NUM, "is_complex": NUM, "numel": NUM,
    "is_autocast_enabled": NUM, "view_as_complex": OTHER, "complex": OTHER, "polar": OTHER, "seed": NUM,
    "initial_seed": NUM, "get_num_threads": NUM, "promote_types": OTHER,
}  # fmt: skip
"""What functions give whose result is not a float of any type."""


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


def _of_math(node: ast.Call, name: str, args: list[Value]) -> Value:
    function: Callable[[float], float] | None = getattr(math, name, None)
    number = args[0].number if len(args) == 1 else None
    if function is not None and number is not None and math.isfinite(number):
        try:
            return constant(function(number), node)
        except (ValueError, OverflowError, TypeError):
            pass
    return Value("math", node, tuple(args), NUM)


_CHECKPOINTS = frozenset({"torch.utils.checkpoint.checkpoint"})


def _through(frame: Frame, node: ast.Call, target: Value, args: list[Value]) -> Value | None:
    """What a function, layer or object of the project gives where another function calls it."""
    if target.op in ("layer", "instance") or _is_some_layer(target):
        return call_object(frame, node, target, args, None)
    return _applied(frame, node, target, args, None)


def _builtin(frame: Frame, node: ast.Call, name: str, args: list[Value], kwargs: dict[str, Value] | None) -> Value:
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


def _gives_parameters(value: Value) -> bool:
    """Whether a value is the weights of a module, as ``parameters()`` gives them."""
    asked = value if value.op == "method" else value.args[0] if value.op == "call" and value.args else None
    return asked is not None and asked.data.__class__ is str and asked.data == "parameters"


def _mapped(frame: Frame, node: ast.Call, function: Value, items: Value) -> Value:
    """``map`` of a function of the file over a tuple, or over the parts of a tensor."""
    if items.op in ("tuple", "list") and items.data is None:
        found = [_applied(frame, node, function, [item], None) for item in items.args]
        results = tuple(item if item is not None else frame.machine.unknown("call", node, None) for item in found)
        return Value("tuple", node, results)
    result = _applied(frame, node, function, [element(frame, items, node)], None)
    made = Value("list", node, (result if result is not None else frame.machine.unknown("call", node, None),))
    made.data = "comprehension"
    return made


def _applied(
    frame: Frame, node: ast.Call, function: Value, args: list[Value], kwargs: dict[str, Value] | None
) -> Value | None:
    """What a lambda, a function of the project or a ``partial`` of one gives; None where that is not known."""
    if function.op == "lambda":
        return frame.machine.run_lambda(frame, function, args, node) if isinstance(function.node, ast.Lambda) else None
    if function.op == "partial":
        target, *given = function.args
        return _applied(frame, node, target, [*given, *args], {**(function.kwargs or {}), **(kwargs or {})})
    if function.op == "function" and isinstance(function.data, FunctionFacts):
        return frame.machine.call_function(frame, node, function.data, args, kwargs or None, None)
    return None


# ---- operations with rules of their own --------------------------------------------------------------------------


_KNOWN = VIEWS | ELEMENTWISE | REDUCTIONS | INTEGERS | BOOLEANS | NUMBERS


# ---- the project's own -------------------------------------------------------------------------------------------


def _of_project(
    frame: Frame,
    node: ast.Call,
    function: FunctionFacts,
    args: list[Value],
    kwargs: dict[str, Value] | None,
    receiver: Value | None,
    open_ended: bool = False,
) -> Value:
    target = Value("function", node.func)
    target.data = function
    shown = Value("call", node, (target, *([receiver] if receiver is not None else []), *args), kwargs=kwargs)
    frame.machine.show(shown, frame)
    if frame.machine.heard is not None:
        frame.machine.heard.take(frame, node, function, args, kwargs)
    if open_ended:
        return _unfollowed(frame, node, target, args, kwargs)
    result = frame.machine.call_function(frame, node, function, args, kwargs, receiver)
    return result if result is not None else _unfollowed(frame, node, target, args, kwargs)


def _unfollowed(
    frame: Frame, node: ast.Call, target: Value, args: list[Value], kwargs: dict[str, Value] | None
) -> Value:
    """A call of the project's that is not run in line; rules about the order of events lose track there."""
    frame.machine.show(Value("unfollowed", node, (target, *args), kwargs=kwargs), frame)
    made = frame.machine.unknown("call", node, None)
    made.args = (target, *args)
    made.kwargs = kwargs
    made.dtypes |= NUM | OTHER | F32 | LOW
    _like_its_arguments(frame, made, node, args)
    return made


def _construct(
    frame: Frame, node: ast.Call, cls: ClassFacts, args: list[Value], kwargs: dict[str, Value] | None
) -> Value:
    made = Value("instance", node, tuple(args))
    made.data = cls
    made.kwargs = kwargs
    frame.machine.show(made, frame)
    init = cls.method("__init__") if frame.machine.heard is not None else None
    if frame.machine.heard is not None and init is not None:
        frame.machine.heard.take(frame, node, init, args, kwargs)
    return made
