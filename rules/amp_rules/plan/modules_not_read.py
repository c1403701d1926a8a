"""Models of modules that are named when the script runs, and that nothing here says: their files were not looked at."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.notes import NOT_READ, note
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.scopes import Scope

_IMPORTS = frozenset({"importlib.import_module", "builtins.__import__"})
_MAX_STEPS = 10
"""Attributes, variables and calls of ``getattr`` between a model and the import that gave its module."""


def notes(program: Program) -> Iterator[Note]:
    """Yield one for each such import of which a trained model comes."""
    told: set[ast.AST] = set()
    for site in _unread(program):
        for value in program.trained:
            made = value.site
            if value.kind != "object" or value.name != "torch.nn.Module" or not isinstance(made, ast.Call):
                continue
            located = program.locate(made)
            if located is None or site.node in told or _import_of(program, made, located[1]) is not site.node:
                continue
            told.add(site.node)
            text = (
                f"`{site.module.text(site.node)}` names the module of the model when the script runs: it was not "
                "looked at"
            )
            yield note(NOT_READ, site.module, site.node, f"{text}, and a kernel in it may refuse half precision")


def _unread(program: Program) -> list[Site]:
    """The imports by a name that is not written there, and that no file of the project is known for."""
    return [
        site
        for site in program.calls_to(_IMPORTS)
        if isinstance(site.node, ast.Call)
        and site.node.args
        and not isinstance(site.node.args[0], ast.Constant)
        and not any(value.kind == "module" for value in program.flow.values(site.node, site.scope))
    ]


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
