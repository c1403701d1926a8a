"""What the project's own decorators do to autocast: those that run what they are given with autocast off."""

from __future__ import annotations

import ast

from amp_rules.source.facts import FunctionFacts


def turns_autocast_off(function: FunctionFacts) -> bool:
    """Whether a decorator of a function, defined in this file or another one, calls it with autocast off."""
    return any(
        isinstance(found, FunctionFacts) and _calls_without_autocast(found)
        for name, _ in function.decorators
        if name and (found := _definition(function, name)) is not None
    )


def _definition(function: FunctionFacts, name: str) -> object:
    module = function.module
    return module.functions.get(name) or module.project.resolve(module, name)


def _calls_without_autocast(decorator: FunctionFacts) -> bool:
    """Whether it calls its first argument in a region that turns autocast off."""
    given = decorator.positional[0] if decorator.positional else None
    for item in ast.walk(decorator.node):
        if isinstance(item, ast.With) and any(_is_off(decorator, part.context_expr) for part in item.items):
            for call in ast.walk(item):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == given:
                    return True
    return False


def _is_off(decorator: FunctionFacts, context: ast.expr) -> bool:
    if not isinstance(context, ast.Call):
        return False
    name = decorator.module.dotted(context.func) or ""
    given = [*context.args, *(item.value for item in context.keywords if item.arg == "enabled")]
    return name.rpartition(".")[2] == "autocast" and any(
        isinstance(item, ast.Constant) and item.value is False for item in given
    )
