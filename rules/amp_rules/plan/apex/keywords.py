"""Keywords that a call is given as a dictionary: ``amp.initialize(model, optimizer, **settings)``."""

from __future__ import annotations

import ast

from amp_rules.plan.apex.file import ApexFile
from amp_rules.source import blocks


def written_out(file: ApexFile, mapping: ast.expr) -> tuple[ast.stmt | None, dict[str, ast.expr]] | None:
    """The keywords that ``**mapping`` gives, where all are constants of the file, and the statement with them."""
    statement: ast.stmt | None = None
    if isinstance(mapping, ast.Name):
        owner = file.references.scope_of(mapping).owner(mapping.id)
        uses = [
            node
            for node in file.module.parents
            if isinstance(node, ast.Name)
            and node.id == mapping.id
            and file.references.scope_of(node).owner(node.id) is owner
        ]
        stores = [node for node in uses if not isinstance(node.ctx, ast.Load)]
        # What else reads it could also change it.
        if len(stores) != 1 or len(uses) != 2 or mapping.id in file.wanted_elsewhere:
            return None
        statement = blocks.statement_of(file.module, stores[0])
        if not isinstance(statement, ast.Assign) or statement.targets != [stores[0]]:
            return None
        mapping = statement.value
    if not isinstance(mapping, ast.Dict):
        return None
    found: dict[str, ast.expr] = {}
    for key, value in zip(mapping.keys, mapping.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(value, ast.Constant)):
            return None
        found[key.value] = value
    return statement, found
