"""The name by which a script imports the package that it lies in, where its folder is called otherwise here.

``from uw.core import build`` in a script that puts the folder above its own, a package, on ``sys.path``: a clone lies
in a folder with the name of the repository, which need not be that of the package.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.packages import LIBRARIES


def own_packages(
    entry: Module,
    packages: Iterable[Path],
    located: Callable[[Path, list[str]], Path | None],
    loaded: Callable[[Path], Module | None],
    is_found: Callable[[str], bool],
) -> dict[str, Path]:
    """Names that the entry's imports have for packages around it, each with the folder of the package.

    A name is taken for a package where all that the entry imports by it is there, and defined.

    Args:
        entry: the script.
        packages: folders around it whose parents are on the path.
        located: gives the file of a dotted name within a folder.
        loaded: gives the module of a file.
        is_found: whether a dotted name is found without this.
    """
    imports: dict[str, list[ast.ImportFrom]] = {}
    for node in entry.nodes:
        if isinstance(node, ast.ImportFrom) and not node.level and node.module and "." in node.module:
            imports.setdefault(node.module.partition(".")[0], []).append(node)
    found: dict[str, Path] = {}
    for name, nodes in imports.items():
        if name in LIBRARIES or name in sys.stdlib_module_names or any(is_found(node.module or "") for node in nodes):
            continue
        for folder in packages:
            if all(_holds(folder, node, located, loaded) for node in nodes):
                found[name] = folder
                break
    return found


def _holds(
    folder: Path,
    node: ast.ImportFrom,
    located: Callable[[Path, list[str]], Path | None],
    loaded: Callable[[Path], Module | None],
) -> bool:
    """Whether a folder has the module of an import, and that all that is imported."""
    parts = (node.module or "").split(".")[1:]
    path = located(folder, parts)
    module = loaded(path) if path is not None else None
    if module is None:
        return False
    names = {alias.name for alias in node.names} - set(_bound(module.tree))
    return "*" in names or all(located(folder, [*parts, name]) is not None for name in names) or has_star(module)


def _bound(tree: ast.Module) -> Iterator[str]:
    """Names that the statements of a file bind, in functions too: more than enough to tell two packages apart."""
    for node in walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def has_star(module: Module) -> bool:
    """Whether a file imports all names of another, whatever these are."""
    return any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in module.nodes)
