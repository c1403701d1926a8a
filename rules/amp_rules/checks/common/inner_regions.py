"""Modules that are made by modules which have turned autocast off already, and have converted what they hand on."""

from __future__ import annotations

import ast

from amp_rules.checks.common.origins import class_around
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.source.syntax import values_given
from amp_rules.torch.dtypes import FLOAT32_TYPES

_MAX_DEPTH = 3
"""How many modules around a module are asked."""


def turns_autocast_off(function: FunctionFacts) -> bool:
    """Whether a decorator turns autocast off for a function."""
    return any(
        name.rpartition(".")[2] == "autocast" and "False" in ast.dump(node) for name, node in function.decorators
    )


def is_inside(function: FunctionFacts, depth: int = _MAX_DEPTH) -> bool:
    """Whether every class of the file that makes the module of a forward pass has float32 values in its own."""
    cls, module = function.cls, function.module
    if cls is None or depth == 0:
        return False
    calls = [call for call in module.index.named.get(cls.name, ()) if isinstance(call.func, ast.Name)]
    makers = [_forward_around(module, call) for call in calls]
    return bool(makers) and all(
        maker is not None
        and maker.node is not function.node
        and turns_autocast_off(maker)
        and (_converts(maker) or is_inside(maker, depth - 1))
        for maker in makers
    )


def _forward_around(module: ModuleFacts, call: ast.Call) -> FunctionFacts | None:
    """The forward pass of the class that a call stands in."""
    cls = class_around(module, call)
    return cls.method("forward") if cls is not None else None


def _converts(function: FunctionFacts) -> bool:
    """Whether a function converts anything to float32."""
    for item in function.nodes:
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute):
            given = values_given(item)
            if item.func.attr == "float" and not given:
                return True
            if item.func.attr == "to" and any(function.module.dotted(part) in FLOAT32_TYPES for part in given):
                return True
    return False
