"""Statements that may download: one process goes first, the others find the files."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.plan.precision import Precision
from amp_rules.roles.steps import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.torch.data import FETCHERS


def downloads(program: Program, precision: Precision) -> list[tuple[Module, ast.stmt]]:
    """Statements that may download, the outermost of those that call each other."""
    fetches = program.closure(lambda node: _fetches(program, node))
    # Preparing a model is a meeting of all ranks: it cannot be done in turns.
    homes = {home.statement for home in precision.homes}
    meets = program.closure(lambda node: node in homes)
    found: dict[ast.stmt, Module] = {}
    for node, _, scope in program.nodes():
        if not isinstance(node, (ast.Assign, ast.Expr, ast.Return, ast.AnnAssign)) or not fetches(node):
            continue
        if not program.runs_backward(node) and not meets(node):
            found[node] = scope.module
    candidates = [(module, statement) for statement, module in found.items()]
    inner = program.called_from(nodes_of(candidates))
    return [item for item in candidates if blocks.body_of(*item) not in inner]


def _fetches(program: Program, node: ast.AST) -> bool:
    """Whether a call may download by itself."""
    located = program.locate(node) if isinstance(node, ast.Call) else None
    if located is None or not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
        return False
    names = program.names(node.func, located[1])
    if any(name.endswith(fetcher) for name in names for fetcher in FETCHERS):
        return True
    is_model = any(name.startswith("torchvision.models.") for name in names)
    return any(
        (item.arg == "download" or (is_model and item.arg in ("pretrained", "weights")))
        and not (isinstance(item.value, ast.Constant) and not item.value.value)
        for item in node.keywords
    )


def nodes_of(statements: Iterable[tuple[Module, ast.stmt]]) -> list[ast.AST]:
    """The nodes that statements run themselves."""
    return [node for _, statement in statements for node in blocks.walk_own(statement)]
