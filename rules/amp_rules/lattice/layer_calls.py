"""Evaluates calls of layers, and of objects of the project's classes."""

from __future__ import annotations

import ast

from amp_rules.lattice.abstract_values import (
    ASSUMED,
    Value,
    join,
)  # fmt: skip
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.operation_names import (
    MODULES,
)
from amp_rules.lattice.project_calls import of_project, unknown_call
from amp_rules.lattice.torch_calls import operation
from amp_rules.source.facts import ClassFacts, FunctionFacts


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
        if method is not None and (heard or _is_short(method) or frame.machine.worth_running(args, kwargs)):
            return of_project(frame, node, method, args, kwargs, held)
    made = unknown_call(frame, node, held, args, kwargs)
    like_a_layer(frame, made, args)
    return made


_SHORT = 8
"""Lines of a ``forward`` that hands its input to layers: whether it ends in a sigmoid is seen there."""


def _is_short(method: FunctionFacts) -> bool:
    return (method.node.end_lineno or 0) - method.node.lineno <= _SHORT


def is_some_layer(value: Value) -> bool:
    """Whether a value is one of several layers, or a layer or nothing."""
    return value.op == "join" and any(item.op in ("layer", "instance") for item in value.args)


def like_a_layer(frame: Frame, made: Value, args: list[Value]) -> None:
    """A module that nothing is known of takes activations and gives activations."""
    made.op = "module"
    made.dtypes = frame.machine.unknown_float
    made.tensor = 1
    made.bits = ASSUMED


def _sequential(frame: Frame, node: ast.Call, held: Value, given: Value) -> Value:
    value = given
    for item in held.args:
        if item.op == "starred" or item.op not in ("layer", "instance"):
            value = frame.machine.unknown("module", node, None)
            value.dtypes, value.tensor, value.bits = frame.machine.unknown_float, 1, ASSUMED
            continue
        value = call_object(frame, node, item, [value], None)
    return value


def _settings(layer: Value) -> dict[str, Value] | None:
    """The arguments of a layer that its operation has as well."""
    if not layer.kwargs:
        return None
    return {name: layer.kwargs[name] for name in ("dim", "reduction") if name in layer.kwargs} or None


_MAX_LAYERS = 4
"""Of a layer that is one of several, so many are called: what the others would give is of the same types."""


_HOLD_A_TABLE = frozenset({"embedding", "embedding_bag", "bilinear"})
