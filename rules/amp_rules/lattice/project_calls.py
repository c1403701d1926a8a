"""Evaluates calls of the project's own functions and classes, and of what nothing is known of."""

from __future__ import annotations

import ast

from amp_rules.lattice.abstract_values import (
    ASSUMED,
    F32,
    FLOATS,
    LOW,
    NUM,
    OTHER,
    Value,
)  # fmt: skip
from amp_rules.lattice.frame import Frame
from amp_rules.source.facts import ClassFacts, FunctionFacts
from amp_rules.source.syntax import last_name
from amp_rules.torch.idioms import NAMED_RESHAPE


def of_project(
    frame: Frame,
    node: ast.Call,
    function: FunctionFacts,
    args: list[Value],
    kwargs: dict[str, Value] | None,
    receiver: Value | None,
    open_ended: bool = False,
) -> Value:
    """A call of a function of the project: run in line where that leads somewhere."""
    target = Value("function", node.func)
    target.data = function
    shown = Value("call", node, (target, *([receiver] if receiver is not None else []), *args), kwargs=kwargs)
    frame.machine.show(shown, frame)
    if frame.machine.heard is not None:
        frame.machine.heard.take(frame, node, function, args, kwargs)
    if open_ended:
        return unfollowed(frame, node, target, args, kwargs)
    result = frame.machine.call_function(frame, node, function, args, kwargs, receiver)
    return result if result is not None else unfollowed(frame, node, target, args, kwargs)


def construct(
    frame: Frame, node: ast.Call, cls: ClassFacts, args: list[Value], kwargs: dict[str, Value] | None
) -> Value:
    """An object of a class of the project."""
    made = Value("instance", node, tuple(args))
    made.data = cls
    made.kwargs = kwargs
    frame.machine.show(made, frame)
    init = cls.method("__init__") if frame.machine.heard is not None else None
    if frame.machine.heard is not None and init is not None:
        frame.machine.heard.take(frame, node, init, args, kwargs)
    return made


def applied(
    frame: Frame, node: ast.Call, function: Value, args: list[Value], kwargs: dict[str, Value] | None
) -> Value | None:
    """What a lambda, a function of the project or a ``partial`` of one gives; None where that is not known."""
    if function.op == "lambda":
        return frame.machine.run_lambda(frame, function, args, node) if isinstance(function.node, ast.Lambda) else None
    if function.op == "partial":
        target, *given = function.args
        return applied(frame, node, target, [*given, *args], {**(function.kwargs or {}), **(kwargs or {})})
    if function.op == "function" and isinstance(function.data, FunctionFacts):
        return frame.machine.call_function(frame, node, function.data, args, kwargs or None, None)
    return None


def unfollowed(
    frame: Frame, node: ast.Call, target: Value, args: list[Value], kwargs: dict[str, Value] | None
) -> Value:
    """A call of the project's that is not run in line; rules about the order of events lose track there."""
    frame.machine.show(Value("unfollowed", node, (target, *args), kwargs=kwargs), frame)
    made = frame.machine.unknown("call", node, None)
    made.args = (target, *args)
    made.kwargs = kwargs
    made.dtypes |= NUM | OTHER | F32 | LOW
    like_its_arguments(frame, made, node, args)
    return made


def unknown_call(
    frame: Frame, node: ast.Call, target: Value, args: list[Value], kwargs: dict[str, Value] | None
) -> Value:
    """A call of something that nothing is known of."""
    made = frame.machine.unknown("call", node, None)
    made.args = (target, *args)
    made.kwargs = kwargs
    made.dtypes |= NUM | OTHER | F32 | LOW
    like_its_arguments(frame, made, node, args)
    frame.machine.show(made, frame)
    return made


def like_its_arguments(frame: Frame, made: Value, node: ast.Call, args: list[Value]) -> None:
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
