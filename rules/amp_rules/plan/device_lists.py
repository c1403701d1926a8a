"""Variables that only say over which devices a model would be spread: ``gpu_ids = range(self.num_gpu)``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection

from amp_rules.roles.sites import Site
from amp_rules.source import blocks


def idle_statements(site: Site, gone: Collection[ast.AST], is_harmless: Callable[[ast.expr], bool]) -> list[ast.stmt]:
    """The statements of a body that assign what only some nodes read, which go: they have no use any more.

    Args:
        site: a place in the body.
        gone: the nodes that go.
        is_harmless: whether evaluating an expression does nothing but ask.
    """
    read = {node.id for node in gone if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    uses = [node for node in blocks.walk_body(site.body) if isinstance(node, ast.Name) and node.id in read]
    found: dict[ast.stmt, None] = {}
    for name in sorted({node.id for node in uses if isinstance(node.ctx, ast.Store)}):
        own = [node for node in uses if node.id == name and node not in gone]
        statements = [_whole(site, node, is_harmless) for node in own]
        if all(isinstance(node.ctx, ast.Store) for node in own) and None not in statements:
            found |= dict.fromkeys(item for item in statements if item is not None)
    return list(found)


def _whole(site: Site, stored: ast.Name, is_harmless: Callable[[ast.expr], bool]) -> ast.stmt | None:
    """The assignment of a name, or the condition that holds nothing else; None where it does more than assign."""
    statement = blocks.statement_of(site.module, stored)
    if not isinstance(statement, ast.Assign) or statement.targets != [stored] or not is_harmless(statement.value):
        return None
    parent = site.module.parents[statement]
    if isinstance(parent, ast.If) and parent.body == [statement] and not parent.orelse and is_harmless(parent.test):
        return None if blocks.is_elif(site.module, parent) else parent
    return statement if len(blocks.place(site.module, statement).suite) > 1 else None
