"""Whether a script alone imports a module: what a module imports, other files may take from it."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from pathlib import Path

from amp_rules.source.mentions import Mentions
from amp_rules.source.modules import Module
from amp_rules.source.notebook import SUFFIX as NOTEBOOK
from amp_rules.source.project import Project
from amp_rules.source.syntax import last_name

_BY_TEXT = re.compile(rb"\b(?:import_module|__import__|runpy|spec_from_file_location)\b")
"""What imports a module whose name may be put together."""


class SoleImporter:
    """Questions about the files beside a script and what it imports, notebooks too; each is read once.

    Args:
        project: the script and what it imports.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._entry = project.entry

    def alone_reads(self, module: Module, name: str) -> bool:
        """Whether no file takes such a name from a module, for certain.

        Others than the script may import other names from it, each by its name.

        It is not certain in a project that is too large to be searched, nor where the script may be imported itself.
        """
        stem = module.path.stem
        if module.path not in self._texts or stem == "__init__" or self._may_take(stem, name):
            return False
        return not any(
            (_may_import(path, text, stem) and not _takes_others(path, text, stem, name))
            or _may_import(path, text, self._entry.path.stem)
            for path, text in self._texts.items()
            if path not in (module.path, self._entry.path)
        )

    @cached_property
    def _texts(self) -> dict[Path, bytes]:
        found = Mentions(self._entry.path, (".py", NOTEBOOK)).texts
        self._project.rest_on(found)
        return found

    def _may_take(self, stem: str, name: str) -> bool:
        """Whether the script takes the name: by itself, with all others, or as an attribute of the module."""
        for node in self._entry.nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] == stem:
                if any(item.name in (name, "*") for item in node.names):
                    return True
            elif isinstance(node, ast.Attribute):
                if node.attr == name and last_name(node.value) != "torch":
                    return True
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and name in node.value.split("."):
                return True
        return False


def _may_import(path: Path, text: bytes, stem: str) -> bool:
    """Whether a file names a module where it imports, or imports what is named elsewhere; in a notebook, anywhere."""
    word = re.escape(stem).encode()
    if path.suffix == NOTEBOOK:
        return re.search(rb"\b" + word + rb"\b", text) is not None
    named = rb"^[^\n#]*\bimport\b[^\n]*\b%b\b|\bfrom\b[^\n]*\b%b\b|\bimport\b\s*\([^)]*\b%b\b" % (word, word, word)
    return _BY_TEXT.search(text) is not None or re.search(named, text, re.MULTILINE) is not None


def _takes_others(path: Path, text: bytes, stem: str, name: str) -> bool:
    """Whether all that a file imports of a module are other names: ``from trainer import Trainer``."""
    if path.suffix == NOTEBOOK or _BY_TEXT.search(text):
        return False
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".")
            taken = {item.name for item in node.names}
            if stem in taken or (stem in parts and (parts[-1] != stem or taken & {name, "*"})):
                return False
        elif isinstance(node, ast.Import):
            named = [item for item in node.names if stem in item.name.split(".")]
            if any(not _asks_for_others(tree, item.asname or item.name, name) for item in named):
                return False
    return True


def _asks_for_others(tree: ast.Module, module: str, name: str) -> bool:
    """Whether all that a file does with a module is asking for other names, each by its name: ``utils.minibatch``."""
    if "." in module:
        return False
    asked = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr != name and isinstance(node.value, ast.Name)
    }
    return all(id(node) in asked for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == module)
