"""Where a new import goes at the head of a file."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Container

from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name


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
    of_torch = [item for item in imports if is_torch_import(item)]
    if not of_torch and (late := _below_the_environment(tree, imports[-1], used)) is not None:
        return late, True
    return (of_torch or imports)[-1], True


def _below_the_environment(tree: ast.Module, place: ast.stmt, used: Container[ast.stmt]) -> ast.stmt | None:
    """Where torch is imported below lines that set environment variables, which torch reads when it is imported."""
    below = itertools.takewhile(lambda item: item not in used, tree.body[tree.body.index(place) + 1 :])
    is_set = False
    for statement in below:
        if is_set and is_torch_import(statement):
            return statement
        is_set = is_set or any(map(_sets_environment, blocks.walk_own(statement)))
    return None


def _sets_environment(node: ast.AST) -> bool:
    """``os.environ["OMP_NUM_THREADS"] = "1"``, ``os.environ.setdefault(...)``, ``os.putenv(...)``."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Store) and last_name(node.value) == "environ"
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = last_name(node.func.value)
    return (owner, node.func.attr) == ("os", "putenv") or (
        owner == "environ" and node.func.attr in ("setdefault", "update")
    )


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
