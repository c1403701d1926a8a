"""Progress bars that a program shows."""

from __future__ import annotations

import ast

from amp_rules.flow.values import Value
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.uncalled import uncalled
from amp_rules.source.scopes import Scope, arguments_of


def progress_bars(program: Program) -> list[tuple[Site, ast.Call]]:
    """Calls that show a progress bar, and do not say already when not to."""
    found = []
    idle = uncalled(program)
    for call, body, scope in program.calls():
        if not program.callee_names(call, scope) or not idle.isdisjoint(scope.module.ancestors(call)):
            continue
        # ``bar = tqdm if first else iter``: what is no bar does not take ``disable``.
        if all(map(_is_bar, program.flow.values(call.func, scope))):
            if not any(item.arg in ("disable", None) for item in call.keywords) and not _is_given(call.func, scope):
                found.append((Site(scope.module, scope, body, call), call))
    return found


def _is_bar(value: Value) -> bool:
    """Whether a value is a function of the library that shows a progress bar."""
    package, _, name = value.name.rpartition(".")
    return (
        value.kind == "external" and package.partition(".")[0] == "tqdm" and name in ("tqdm", "trange", "tqdm_notebook")
    )


def _is_given(function: ast.expr, scope: Scope) -> bool:
    """Whether a parameter holds the function: something that takes other arguments may be passed as well."""
    if not isinstance(function, ast.Name):
        return False
    owner = scope.owner(function.id).node
    return isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and any(
        argument.arg == function.id for argument in arguments_of(owner)
    )
