"""Imports that nothing uses any more once some edits are made."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from amp_rules.lint.resolved_edits import EditResolver, ResolvedEdit, uses
from amp_rules.source.modules import Module
from amp_rules.source.notebook import SUFFIX as NOTEBOOK

_KEPT_ON_PURPOSE = re.compile(r"#.*(?:noqa|pylint:|type:|isort:)", re.IGNORECASE)


@dataclass(frozen=True)
class LeftoverImport:
    """An import of which some names are used no more.

    Attributes:
        statement: the import.
        names: those names, as they are called in the package.
        whole: whether these are all that it binds.
    """

    statement: ast.Import | ast.ImportFrom
    names: tuple[str, ...]
    whole: bool


def leftover_imports(resolver: EditResolver, edits: Sequence[ResolvedEdit]) -> list[LeftoverImport]:
    """Return the imports whose last use the edits take away; what nothing used before is none of theirs.

    A package's ``__init__.py`` imports for others, a cell of a notebook for other cells, a class for its users, and an
    import within ``try`` asks what is installed: they stay. So does what files nearby import from this one.
    """
    module = resolver.module
    if module.path.name == "__init__.py" or module.path.suffix == NOTEBOOK:
        return []
    gone = uses(edit.node for edit in edits if edit.kind in ("replace", "remove"))
    try:
        gone.subtract(uses(ast.parse(edit.text) for edit in edits if edit.text))
    except SyntaxError:
        # Whoever carries the edits out says so.
        return []
    unused = {name for name, count in gone.items() if 0 < count == resolver.uses[name]}
    if unused:
        unused -= _mentioned(module.tree, unused)
    if unused:
        unused -= _asked_for_nearby(module.path, unused)
    if not unused:
        return []
    return [found for found in _imports(module, unused) if found.names]


def _imports(module: Module, unused: set[str]) -> Iterator[LeftoverImport]:
    for node in ast.walk(module.tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)) or _is_kept(node, module):
            continue
        names = tuple(alias.name for alias in node.names if _binds(alias, node) in unused)
        yield LeftoverImport(node, names, len(names) == len(node.names))


def _binds(alias: ast.alias, node: ast.Import | ast.ImportFrom) -> str | None:
    """The name that an import gives; None where it does more than that, or says that others want the name."""
    if isinstance(node, ast.Import) and alias.asname is None and "." in alias.name:
        return None
    return None if alias.asname == alias.name else alias.asname or alias.name


def _is_kept(node: ast.Import | ast.ImportFrom, module: Module) -> bool:
    lines = module.lines[node.lineno - 1 : node.end_lineno or node.lineno]
    if any(_KEPT_ON_PURPOSE.search(line) for line in lines) or getattr(node, "module", "") == "__future__":
        return True
    return isinstance(module.parents[node], (ast.Try, ast.ExceptHandler, ast.ClassDef))


def _mentioned(tree: ast.AST, names: Iterable[str]) -> set[str]:
    """The names that texts mention: annotations in quotes, ``__all__``, what is looked up by name."""
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    words: Mapping[str, re.Pattern[str]] = {name: re.compile(rf"\b{re.escape(name)}\b") for name in names}
    docstrings = _docstrings(tree)
    return {name for name, word in words.items() if any(word.search(text) for text in texts if text not in docstrings)}


def _asked_for_nearby(path: Path, names: set[str]) -> set[str]:
    """The names that a file beside this one, or in the folder above, imports from it; all where one takes ``*``."""
    importing = re.compile(rb"^\s*from\s+[.\w]*\b" + re.escape(path.stem).encode() + rb"\s+import\b(.*)", re.MULTILINE)
    found: set[str] = set()
    for file in (*path.parent.glob("*.py"), *path.parent.parent.glob("*.py")):
        try:
            text = file.read_bytes()
        except OSError:
            continue
        for match in importing.finditer(text):
            rest = text[match.start(1) :] if b"(" in match[1] else match[1]
            words = {word.decode() for word in re.findall(rb"\w+", rest)}
            found |= names if b"*" in match[1] else names & words
    return found


def _docstrings(tree: ast.AST) -> set[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented))
    return {text for text in found if text}
