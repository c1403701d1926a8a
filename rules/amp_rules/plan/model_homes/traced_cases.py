"""Modules that a program makes around a model only to write its graph down: ``export(Encoder(model), x, path)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import values_given
from amp_rules.torch.wrappers import TRACES, TRACING_METHODS

_SAME = frozenset({"eval", "train", "to", "cpu", "cuda", "float", "half", "requires_grad_"})
"""Methods of a module that set it up, and run no forward pass."""


def models_in_traced_cases(program: Program) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what the constructors of such modules are given: what is in them is reached without its wrapper."""
    made = {
        value: value.site
        for call, _, scope in program.calls()
        if (model := traced_model(program, call, scope)) is not None
        for value in program.flow.values(model, scope)
        if value.kind == "instance" and is_module(value) and isinstance(value.site, ast.Call)
    }
    for value, making in made.items():
        located = program.locate(making)
        if located is not None and _only_traced(program, value):
            for given in values_given(making):
                yield given, located[1]


def traced_model(program: Program, call: ast.Call, scope: Scope) -> ast.expr | None:
    """What a call is given to write its graph down; None where it does no such thing."""
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in TRACING_METHODS
    is_traced = bool(program.callee_names(call, scope) & TRACES)
    if not (is_method or is_traced):
        return None
    named = [item.value for item in call.keywords if item.arg == "model"] if is_traced else []
    return next(iter([*call.args, *named]), None)


def _only_traced(program: Program, value: Value) -> bool:
    """Whether all that reads a module, but its own methods, sets it up or writes its graph down."""
    for node, body, scope in program.nodes():
        if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
            continue
        if value not in program.flow.values(node, scope):
            continue
        owner = program.owner_of(body)
        if owner is not None and owner in value.ref.mro():
            continue
        parent = scope.module.parents[node]
        if isinstance(parent, ast.Attribute) and parent.attr in _SAME:
            continue
        if isinstance(parent, (ast.Assign, ast.AnnAssign)) and parent.value is node:
            continue
        if not isinstance(parent, ast.Call) or traced_model(program, parent, scope) is not node:
            return False
    return True
