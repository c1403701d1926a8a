"""Progress bars that a program shows."""

from __future__ import annotations

import ast

from amp_rules.flow.values import Value
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.uncalled import uncalled
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope, arguments_of
from amp_rules.torch.writers import DRAWN_BARS


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


def drawn_bars(program: Program) -> list[Site]:
    """Calls that make a bar which can only be drawn or not made, where a variable holds it and nothing else asks it."""
    idle = uncalled(program)
    return [
        site
        for site in program.calls_to(DRAWN_BARS)
        if idle.isdisjoint(site.module.ancestors(site.node)) and _is_only_drawn(program, site)
    ]


def _is_only_drawn(program: Program, made: Site) -> bool:
    """Whether all that is done with a bar is to call its methods for what they show, and to put it into texts."""
    statement = made.module.parents[made.node]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or made.scope.owner(target.id) is not made.scope:
        return False
    for node, _, scope in program.nodes():
        if isinstance(node, ast.Name) and node.id == target.id and scope.owner(node.id) is made.scope:
            if isinstance(node.ctx, ast.Load) and not _is_shown(scope.module, node):
                return False
    return True


def _is_shown(module: Module, node: ast.Name) -> bool:
    """Whether a use of a bar shows it: ``bar.next()``, ``bar.suffix = ...``, ``"{}".format(bar.eta_td)``."""
    attribute = module.parents[node]
    if not isinstance(attribute, ast.Attribute):
        return False
    if isinstance(attribute.ctx, ast.Store):
        return True
    call = module.parents[attribute]
    if isinstance(call, ast.Call) and call.func is attribute:
        return isinstance(module.parents[call], ast.Expr)
    statement = blocks.statement_of(module, node)
    # A text of it is for the bar itself.
    return (
        isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Attribute)
        and isinstance(statement.targets[0].value, ast.Name)
        and statement.targets[0].value.id == node.id
        and isinstance(call if not isinstance(call, ast.keyword) else module.parents[call], _TEXTS)
    )


_TEXTS = (ast.Call, ast.FormattedValue)


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
