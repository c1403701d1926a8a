"""Models of modules that are named when the script runs, and that nothing here says: their files were not looked at."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.reflection import IMPORTS_BY_NAME
from amp_rules.plan.notes import NOT_READ, note
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.scopes import Scope

_MAX_STEPS = 10
"""Attributes, variables and calls of ``getattr`` between a model and the import that gave its module."""


def notes(program: Program) -> Iterator[Note]:
    """Yield one for each such import of which a trained model comes."""
    unread = _unread(program)
    behind_models = set(_behind_models(program)) if unread else set()
    for site in unread:
        if site.node in behind_models:
            text = (
                f"`{site.module.text(site.node)}` names the module of the model when the script runs: it was not "
                "looked at"
            )
            yield note(NOT_READ, site.module, site.node, f"{text}, and a kernel in it may refuse half precision")


def _unread(program: Program) -> list[Site]:
    """The imports by a name that is not written there, and that no file of the project is known for."""
    return [
        site
        for site in program.calls_to(IMPORTS_BY_NAME)
        if isinstance(site.node, ast.Call)
        and site.node.args
        and not isinstance(site.node.args[0], ast.Constant)
        and not any(value.kind == "module" for value in program.flow.values(site.node, site.scope))
    ]


def _behind_models(program: Program) -> Iterator[ast.expr]:
    """Yield what gives the modules of the trained models whose class is not known."""
    for value in program.trained:
        made = value.site
        if value.kind != "object" or value.name != "torch.nn.Module" or not isinstance(made, ast.Call):
            continue
        located = program.locate(made)
        given = _import_of(program, made, located[1]) if located is not None else None
        if given is not None:
            yield given


def _import_of(program: Program, call: ast.Call, scope: Scope) -> ast.expr | None:
    """The import that gives the module whose function or class a call runs."""
    node: ast.expr | None = call.func
    for _ in range(_MAX_STEPS):
        if isinstance(node, ast.Attribute):
            node = node.value
        elif isinstance(node, ast.Name):
            node = _only_value(program, node, scope)
        elif isinstance(node, ast.Call) and node.args and "builtins.getattr" in program.callee_names(node, scope):
            node = node.args[0]
        else:
            return node
    return None


def _only_value(program: Program, name: ast.Name, scope: Scope) -> ast.expr | None:
    """What the one assignment to a variable gives it."""
    key = program.flow.key(name, scope)
    found = [
        node.value
        for node, _, other in program.nodes()
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and program.flow.key(target, other) == key for target in node.targets)
    ]
    return found[0] if len(found) == 1 else None
