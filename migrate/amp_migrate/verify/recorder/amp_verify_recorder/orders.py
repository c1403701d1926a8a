"""The lines of the project that take the order of a set, which is another one in each process."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator

from .sites import Sites

_SETS = ("set", "frozenset")
_TAKE_IT = ("list", "tuple", "enumerate", "iter", "zip", "map", "dict", "next")
_JOIN = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)
_LARGEST = 1 << 20


def taking_orders_of_sets(sites: Sites) -> Iterator[str]:
    """Each such line of the modules that were imported, as far as the text tells that it is a set."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py") or not sites.is_own(path):
            continue
        if os.path.getsize(path) > _LARGEST:
            continue
        with open(path, encoding="utf-8", errors="replace") as file:
            tree = ast.parse(file.read())
        name = sites.name(path)
        yield from (f"{name}:{line}" for line in sorted(set(_lines(tree))))


def _lines(tree: ast.AST) -> Iterator[int]:
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_set(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        taken: list[ast.expr] = []
        if isinstance(node, (ast.For, ast.comprehension)):
            taken = [node.iter]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _TAKE_IT:
            taken = node.args
        yield from (part.lineno for part in taken if _is_set(part, names))


def _is_set(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _SETS
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, _JOIN)
        and (_is_set(node.left, names) or _is_set(node.right, names))
    )
