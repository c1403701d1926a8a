"""Whether a script can come to a backward pass at all, by names alone.

The program model answers this exactly, and costs a second for some scripts; many of those that import a training
library only evaluate. Here a function counts as run when anything that is run mentions its name, so a script is passed
over only if no mention leads from it to a backward pass. Where a name is computed, all names of the file count as
mentioned, and all of a module that it is looked up in."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from amp_rules.source.files import Files
from amp_rules.source.modules import Module
from amp_rules.source.resolver import bound_name, imported
from amp_rules.source.syntax import called_name, children
from amp_rules.source.text import SourceError

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Calls that can lead to anything, by their last name, and those that can lead to anything in the file.
_ANYWHERE = frozenset({"exec", "import_module", "__import__", "instantiate"})
_HERE = frozenset({"globals", "locals", "vars", "eval"})
# Decorators that leave a function where it is; others may hand it to a registry.
_PLAIN = frozenset(
    "property staticmethod classmethod no_grad inference_mode abstractmethod wraps lru_cache cached_property setter "
    "overload dataclass script ignore unused export cache contextmanager jit autocast".split()
)


@dataclass
class Part:
    """A function, or what of a file runs when it is imported.

    Attributes:
        names: what it mentions.
        trains: whether it calls something's ``backward``.
        computes: whether it may call anything by a name that it computes.
        looks_here: whether it may call anything of its own file so.
        looks_in: names of what it looks computed names up in.
    """

    names: set[str] = field(default_factory=set)
    trains: bool = False
    computes: bool = False
    looks_here: bool = False
    looks_in: set[str] = field(default_factory=set)


@dataclass
class Outline:
    """A file as :func:`may_train` sees it.

    Attributes:
        head: what runs when the file is imported.
        functions: by each function's own name; what Python calls by itself stands under the name of its class too.
        imported: the names that it imports, and the last name of what each stands for.
    """

    head: Part = field(default_factory=Part)
    functions: dict[str, list[Part]] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)

    def parts(self) -> list[Part]:
        """Everything in the file."""
        return [self.head, *(part for parts in self.functions.values() for part in parts)]


def may_train(entry: Path, reached: Iterable[Path], files: Files, words: frozenset[str] | None = None) -> bool:
    """Whether anything that the entry mentions leads to a backward pass.

    Args:
        entry: the script.
        reached: the files that its imports lead to, itself included.
        files: what is on disk.
        words: all words of an entry that is not parsed here, which a notebook is not.
    """
    try:
        outlines = {path: outline(files.module(path)) for path in reached if words is None or path != entry}
    except (SourceError, RecursionError):
        # A file that cannot be read, or is too deep to be looked through, may run anything.
        return True
    by_name: dict[str, list[Part]] = {}
    for found in outlines.values():
        for name, parts in found.functions.items():
            by_name.setdefault(name, []).extend(parts)
    if words is not None:
        outlines[entry] = Outline(Part(set(words), computes=bool(words & (_ANYWHERE | _HERE))))
    modules = {path.parent.name if path.stem == "__init__" else path.stem for path in outlines}
    home = {id(part): found for found in outlines.values() for part in found.parts()}
    pending = [*(found.head for found in outlines.values()), *outlines[entry].parts()]
    seen: set[str] = set()
    done: set[int] = set()
    while pending:
        part = pending.pop()
        if id(part) in done:
            continue
        done.add(id(part))
        if part.trains or part.computes:
            return True
        file = home[id(part)]
        if part.looks_here:
            pending += file.parts()
        if any(file.imported.get(name) in modules for name in part.looks_in):
            return True
        for name in part.names - seen:
            seen.add(name)
            pending += by_name.get(name, ())
    return False


def outline(module: Module) -> Outline:
    """The outline of a file, which is kept with it."""
    known: Outline | None = module.kept.get("outline")
    if known is None:
        known = module.kept["outline"] = Outline()
        _fill(module.tree, known.head, known, None)
    return known


def _fill(top: ast.AST, part: Part, whole: Outline, owner: str | None) -> None:
    pending: list[tuple[ast.AST, Part, str | None]] = [(top, part, owner)]
    while pending:
        node, part, owner = pending.pop()
        if isinstance(node, _FUNCTIONS):
            handed = any(called_name(item) not in _PLAIN for item in node.decorator_list)
            inner = part if handed else Part()
            if not handed:
                whole.functions.setdefault(node.name, []).append(inner)
                if owner is not None and (node.name.startswith("__") or node.name == "forward"):
                    whole.functions.setdefault(owner, []).append(inner)
            pending += [(item, part, None) for item in (*node.decorator_list, node.args)]
            pending += [(item, inner, None) for item in node.body]
            continue
        if isinstance(node, ast.ClassDef):
            handed = any(called_name(item) not in _PLAIN for item in node.decorator_list)
            pending += [(item, part, None) for item in (*node.decorator_list, *node.bases, *node.keywords)]
            pending += [(item, part, None if handed else node.name) for item in node.body]
            if handed:
                part.names.add(node.name)
            continue
        if isinstance(node, ast.Name):
            part.names.add(node.id)
        elif isinstance(node, ast.Attribute):
            part.names.add(node.attr)
            if node.attr == "__dict__" and isinstance(node.value, ast.Name):
                part.looks_in.add(node.value.id)
        elif isinstance(node, ast.Call):
            name = called_name(node.func)
            if name == "backward":
                part.trains = True
            elif name == "getattr" and len(node.args) > 1:
                _getattr(node.args[0], node.args[1], part)
            elif name in _ANYWHERE:
                part.computes = True
            elif name in _HERE and isinstance(node.func, ast.Name):
                part.looks_here = True
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                whole.imported[bound_name(alias)] = (imported(node, alias) or "").rpartition(".")[2]
        pending += [(child, part, None) for child in children(node)]


def _getattr(owner: ast.expr, name: ast.expr, part: Part) -> None:
    if isinstance(name, ast.Constant):
        part.names.add(str(name.value))
    elif isinstance(owner, ast.Name):
        part.looks_in.add(owner.id)
        part.looks_here = True
    else:
        part.looks_here = True
