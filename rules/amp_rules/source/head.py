"""Where a new import goes at the head of a file."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Container

from amp_rules.source.modules import Module


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
        # Below the docstring, and below what a notebook asks of IPython, which stands first in its cell.
        leading = list(itertools.takewhile(_says_nothing, tree.body))
        return (leading[-1], True) if leading else (tree.body[0], False)
    return ([item for item in imports if is_torch_import(item)] or imports)[-1], True


def import_place_in_notebook(module: Module, used: Container[ast.stmt] = ()) -> tuple[ast.stmt, bool]:
    """Return the same for a notebook: the first cell with imports of torch, else with imports at all.

    Imports and definitions take turns in the cells, so only what uses the new one bounds the search.
    """
    before = itertools.takewhile(lambda item: item not in used, module.tree.body)
    imports = [item for item in before if isinstance(item, (ast.Import, ast.ImportFrom))]
    chosen = next(filter(is_torch_import, imports), None) or next(iter(imports), None)
    if chosen is None:
        return import_place(module.tree, used)
    together = [item for item in imports if module.cell_of(item) == module.cell_of(chosen)]
    return ([item for item in together if is_torch_import(item)] or together)[-1], True


def _says_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def is_torch_import(node: ast.stmt) -> bool:
    """Whether the statement imports torch, or something of it."""
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] == "torch"
    return isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "torch" for alias in node.names)
