"""Files that are named after another one: what is left of the one is left of the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.file_effects import given_paths
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

_ENDINGS = (".", "_", "-")
"""How what comes behind the path of a file begins, and what comes behind that of a folder does not."""

_Row = tuple[Module, ast.stmt]


def is_beside(own: OwnDdp, row: _Row, other: _Row) -> bool:
    """Whether a statement writes what is named after the file of another in its suite: ``path + ".json"``."""
    module, statement = row
    suite = blocks.place(*row).suite
    if module is not other[0] or blocks.place(*other).suite != suite:
        return False
    names = {item.id for item in _written(own, *other) if isinstance(item, ast.Name)}
    for path in _written(own, module, statement) if names else ():
        given = [path]
        if isinstance(path, ast.Name):
            given = [
                item.value
                for item in suite
                if isinstance(item, ast.Assign) and item.lineno < statement.lineno and path.id in blocks.writes(item)
            ]
        if given and _named_after(given[-1]) in names:
            return True
    return False


def _written(own: OwnDdp, module: Module, statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the paths of what a statement writes."""
    for node in walk(statement):
        if isinstance(node, ast.Call) and own.saves(module, node):
            yield from given_paths(node, 2)


def _named_after(path: ast.expr) -> str | None:
    """The variable that a path begins with, where an ending comes next: ``path + ".json"``, ``f"{path}.json"``."""
    if isinstance(path, ast.BinOp) and isinstance(path.op, ast.Add):
        first, second = path.left, path.right
    elif isinstance(path, ast.JoinedStr) and len(path.values) > 1 and isinstance(path.values[0], ast.FormattedValue):
        first, second = path.values[0].value, path.values[1]
    else:
        return None
    ends = isinstance(second, ast.Constant) and str(second.value).startswith(_ENDINGS)
    return first.id if ends and isinstance(first, ast.Name) else None
