"""No file of the three packages imports itself by way of others.

What is read are the import statements, wherever they stand: an import inside a function or under ``TYPE_CHECKING`` lets
Python start, but a reader still needs both files to understand either, and neither can be moved or tested alone.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "amp_runtime": ROOT / "runtime" / "amp_runtime",
    "amp_rules": ROOT / "rules" / "amp_rules",
    "amp_migrate": ROOT / "migrate" / "amp_migrate",
}

# Circles that torch forces, each as the set of its modules, with the reason. There is none.
FORCED: list[frozenset[str]] = []

Graph = dict[str, set[str]]


def modules_of(folder: Path) -> dict[str, Path]:
    """The dotted name of every file of a package; a package's own is that of its ``__init__``."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """The dotted names that the import statements of a file speak of, at any depth, relative ones made absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = node.level - is_package  # the first dot of an __init__ is the package itself
                parts = module.split(".")
                base = ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def graph_of(modules: dict[str, Path]) -> Graph:
    """For every module those of ``modules`` that it imports; a name that is no module is one of its package's."""
    graph: Graph = {}
    for module, path in modules.items():
        tree = ast.parse(path.read_bytes(), str(path))
        names = imported(tree, module, path.name == "__init__.py")
        targets = {name if name in modules else name.rpartition(".")[0] for name in names}
        graph[module] = (targets & modules.keys()) - {module}
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """The sets of modules that reach each other (strongly connected components of two or more), sorted."""
    below = {module: reachable(graph, module) for module in graph}
    found = {frozenset(other for other in below[module] if module in below[other]) for module in graph}
    return sorted(sorted(circle) for circle in found if circle)


def reachable(graph: Graph, start: str) -> set[str]:
    """The modules that ``start`` imports, directly or by way of others; itself only where it is on a circle."""
    seen: set[str] = set()
    open_ = [start]
    while open_:
        for target in graph[open_.pop()] - seen:
            seen.add(target)
            open_.append(target)
    return seen


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_file_imports_itself_by_way_of_others(package: str) -> None:
    found = [circle for circle in circles(graph_of(modules_of(PACKAGES[package]))) if frozenset(circle) not in FORCED]
    lines = [f"{len(circle)} files: {', '.join(circle)}" for circle in found]
    assert not found, "circles of imports:\n" + "\n".join(lines)


SAMPLE = {
    "pack/__init__.py": "from pack.first import one\n",
    "pack/first.py": "from pack import second\n",
    "pack/second.py": "def late():\n    from .inner import third\n",
    "pack/inner/__init__.py": "",
    "pack/inner/third.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..first import one\n",
    "pack/apart.py": "import pack.first\nimport torch\n",
}


def test_imports_are_followed_into_functions_and_type_checking(tmp_path: Path) -> None:
    for name, text in SAMPLE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    graph = graph_of(modules_of(tmp_path / "pack"))
    assert graph["pack"] == {"pack.first"}
    assert graph["pack.apart"] == {"pack.first"}
    assert circles(graph) == [["pack.first", "pack.inner.third", "pack.second"]]


def test_a_name_of_a_package_leads_to_its_init(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("from .part import thing\n")
    (tmp_path / "pack" / "part.py").write_text("from . import other_thing\n")
    assert circles(graph_of(modules_of(tmp_path / "pack"))) == [["pack", "pack.part"]]
