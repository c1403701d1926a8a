"""Loaders in a list beside a list of phases: ``for i, phase in enumerate(phases): ... loaders[i]``."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

_LOOKS_AT = frozenset({"builtins.enumerate", "builtins.len", "builtins.print", "builtins.zip"})
"""Functions that leave the list that they are given as it is, and keep no hold of it."""


def listed(program: Program, site: Site, name: str) -> list[tuple[object, ast.expr]]:
    """Each value of the variable ``name`` of the loop around an item of a list, with that item; none if not certain."""
    item = site.node
    if not (isinstance(item, ast.Subscript) and isinstance(item.slice, ast.Name)):
        return []
    items = _written_list(program, site, item.value)
    for loop in blocks.enclosing(site.module, item):
        if isinstance(loop, ast.For) and items:
            phases = _phases(program, site, loop, item.slice.id, name)
            if phases:
                return list(zip(phases, items, strict=True)) if len(phases) == len(items) else []
    return []


def _phases(program: Program, site: Site, loop: ast.For, index: str, name: str) -> list[object]:
    """What ``name`` is in each round of ``for index, name in enumerate(phases)``, where nothing else writes either."""
    head = loop.iter
    if not (isinstance(head, ast.Call) and "builtins.enumerate" in program.callee_names(head, site.scope)):
        return []
    if len(head.args) != 1 or head.keywords or not isinstance(loop.target, ast.Tuple):
        return []
    if [blocks.path_of(target) for target in loop.target.elts] != [index, name]:
        return []
    if any({index, name} & blocks.writes_itself(node) for item in loop.body for node in walk(item)):
        return []
    given = _written_list(program, site, head.args[0])
    constants: list[object] = [item.value for item in given if isinstance(item, ast.Constant)]
    return constants if len(constants) == len(given) else []


def _written_list(program: Program, site: Site, node: ast.expr) -> list[ast.expr]:
    """The items of a list that is written out, here or in the one assignment of a variable that nothing changes."""
    if isinstance(node, ast.Name) and site.scope.owner(node.id).node is site.body:
        assigned = [item for item in program.nodes_of(site.body) if node.id in blocks.writes_itself(item)]
        given = assigned[0].value if len(assigned) == 1 and isinstance(assigned[0], ast.Assign) else None
        if given is None or assigned[0].targets[0] is not _only_name(assigned[0]):  # type: ignore[attr-defined]
            return []
        uses = [part for part in walk(site.body) if isinstance(part, ast.Name) and part.id == node.id]
        if not all(_only_looks(program, site, part) for part in uses if isinstance(part.ctx, ast.Load)):
            return []
        node = given
    if not isinstance(node, (ast.List, ast.Tuple)) or any(isinstance(item, ast.Starred) for item in node.elts):
        return []
    return node.elts


def _only_name(statement: ast.AST) -> ast.Name | None:
    """The one variable that an assignment gives a value."""
    targets = getattr(statement, "targets", [])
    return targets[0] if len(targets) == 1 and isinstance(targets[0], ast.Name) else None


def _only_looks(program: Program, site: Site, use: ast.Name) -> bool:
    """Whether a use of a list reads an item, its length, or goes over it."""
    parent = site.module.parents.get(use)
    if isinstance(parent, ast.Subscript):
        return parent.value is use and isinstance(parent.ctx, ast.Load)
    if isinstance(parent, ast.Call) and use in parent.args:
        return bool(program.callee_names(parent, site.scope) & _LOOKS_AT)
    return isinstance(parent, (ast.For, ast.comprehension)) and parent.iter is use
