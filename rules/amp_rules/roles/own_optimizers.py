"""Optimizers of the project that are given a model, and take its parameters themselves: ``OwnAdam(model)``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.flow.flow import Flow
from amp_rules.flow.values import Value
from amp_rules.roles.kinds import is_module, is_optimizer
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import values_given


def models_within(flow: Flow, call: ast.Call, scope: Scope, given: Iterable[Value]) -> set[Value]:
    """The models among ``given`` whose parameters the constructor called hands to that of its base."""
    models = {value for value in given if is_module(value)}
    found: set[Value] = set()
    for cls in flow.values(call.func, scope) if models else ():
        if cls.kind != "class" or not is_optimizer(Value("instance", cls.ref)):
            continue
        init = cls.ref.find_method("__init__")
        inner = flow.scopes[init.node] if init is not None else None
        for node in blocks.walk_body(init.node) if init is not None else ():
            if inner is not None and isinstance(node, ast.Call) and _is_base_constructor(node):
                pending = {value for item in node.args for value in flow.values(item, inner)}
                found |= {value.ref for value in _parts(flow, pending) if value.kind == "parameters"} & models
    return found


def _is_base_constructor(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "__init__"


def _parts(flow: Flow, values: set[Value]) -> set[Value]:
    """The values with the elements of containers, at any depth."""
    seen: set[Value] = set()
    pending = set(values)
    while pending:
        seen |= pending
        pending = flow.elements({value for value in pending if value.kind == "sequence"}) - seen
    return seen


def models_given(flow: Flow, made: Iterable[tuple[ast.Call, Scope]]) -> set[Value]:
    """The model that functions are given which make the optimizers: ``make_optimizer(model, settings)``.

    For optimizers of which nothing else is known, as a configuration names them. Of two models it is not known which.
    """
    found: set[Value] = set()
    for call, scope in made:
        held = [{value for value in flow.values(item, scope) if is_module(value)} for item in values_given(call)]
        models = [item for item in held if item]
        if len(models) != 1:
            return set()
        found |= models[0]
    return found
