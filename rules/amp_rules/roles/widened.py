"""Models that make parts of themselves float32 as they run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode


def widened_parts(program: Program) -> Iterator[tuple[ast.Call, Module]]:
    """Yield the calls, ``self.head.float()``, by which a method of a model makes a part of it float32.

    A constructor makes no half model float32: all it makes is so.
    """
    for call, body, scope in program.calls():
        func = call.func
        if not (isinstance(func, ast.Attribute) and func.attr == "float") or call.args or call.keywords:
            continue
        if not isinstance(body, FunctionNode) or getattr(body, "name", "") == "__init__":
            continue
        held = program.flow.values(func.value, scope) if program.is_model_code(body) else set()
        # A list of layers gives itself, too, where it is gone through.
        held = {value for value in held if value.kind != "sequence"}
        # What a layer gives is no layer: ``x = self.conv(x)``.
        if held and all(is_module(value) and not value.is_result for value in held):
            yield call, scope.module
