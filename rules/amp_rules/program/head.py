"""Where a new import goes."""

from __future__ import annotations

import ast
from collections.abc import Container


def import_place(tree: ast.Module, used: Container[ast.stmt] = ()) -> tuple[ast.stmt, bool]:
    """Return the statement beside which an import goes, and whether it goes after it.

    That is after torch's imports at the head of the file, else after the last import there; before what uses it.
    """
    imports: list[ast.stmt] = []
    for statement in tree.body:
        if statement in used or isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.If)):
            break
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            imports.append(statement)
    if not imports:
        first = tree.body[0]
        is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        return first, is_docstring
    return ([item for item in imports if _is_torch(item)] or imports)[-1], True


def _is_torch(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] == "torch"
    return isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "torch" for alias in node.names)
