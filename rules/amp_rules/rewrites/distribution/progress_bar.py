"""Show one progress bar, not one for each process.

## What it does
`tqdm(loader)` gets `disable=not amp.is_main_process()`.

## Why
Several bars on one terminal overwrite each other.

## Before
    for x, y in tqdm(loader):

## After
    for x, y in tqdm(loader, disable=not amp.is_main_process()):

## When it declines
Where `disable` is set already, or arguments are passed by `**`.

## Leaving it out
Yes: training is the same with a bar for each process.

## Source
https://tqdm.github.io/docs/tqdm/
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.rule import Rule
from amp_rules.roles.steps import Program, Site
from amp_rules.source.scopes import Scope, arguments_of
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import add_keyword

RULE = Rule("AMP206", "one-progress-bar", "Only the main process shows a progress bar.", "distribution", optional=True)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each progress bar."""
    for site in _bars(context.program):
        assert isinstance(site.node, ast.expr)
        edit = add_keyword(f"disable=not {context.vocabulary.is_main_process(site.module)}")
        yield Change(
            RULE, site.module, site.node, "one bar for all processes", [Replace(site.node, edit)], needs_import=True
        )


def _bars(program: Program) -> list[Site]:
    """Calls that show a progress bar, and do not say already when not to."""
    found = []
    for call, body, scope in program.calls():
        names = program.callee_names(call, scope)
        if any(
            name.startswith("tqdm.") and name.rpartition(".")[2] in ("tqdm", "trange", "tqdm_notebook")
            for name in names
        ):
            if not any(item.arg in ("disable", None) for item in call.keywords) and not _is_given(call.func, scope):
                found.append(Site(scope.module, scope, body, call))
    return found


def _is_given(function: ast.expr, scope: Scope) -> bool:
    """Whether a parameter holds the function: something that takes other arguments may be passed as well."""
    if not isinstance(function, ast.Name):
        return False
    owner = scope.owner(function.id).node
    return isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and any(
        argument.arg == function.id for argument in arguments_of(owner)
    )
