"""Which files of a folder are training scripts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from amp_rules.flow.statements import is_main_guard
from amp_rules.folder.backward_calls import may_train
from amp_rules.folder.import_lines import ImportGraph, notebook_code
from amp_rules.source.files import Files
from amp_rules.source.modules import Module
from amp_rules.source.notebook import SUFFIX
from amp_rules.source.resolver import bound_name
from amp_rules.source.syntax import children
from amp_rules.source.text import SourceError

_SCRIPT = re.compile(r"""["']?[\w-]+["']?\s*=\s*["']?([\w.]+):\w+""")
_WORD = re.compile(r"[^\W\d]\w*")
_PACKAGING = ("pyproject.toml", "setup.cfg", "setup.py")
_RUNNERS = frozenset({"fire", "absl", "absl.app", "typer", "plac", "tyro", "jsonargparse", "clize", "defopt"})
_TEST_RUNNERS = frozenset({"pytest", "unittest", "nose", "absl.testing"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass
class TrainingScripts:
    """What a folder holds.

    Attributes:
        scripts: files that are run and that may train: they reach a backward pass, or a framework that runs one.
        users: files beside those that use Apex, though no script that trains was found to import them.
        trainers: files with a training step of their own, tests left out.
        others: all other files that mention torch.
        lines: the number of lines looked at.
        files: the number of files looked at.
    """

    scripts: list[Path] = field(default_factory=list)
    users: list[Path] = field(default_factory=list)
    trainers: list[Path] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)
    lines: int = 0
    files: int = 0


def find_entries(paths: Sequence[Path], files: Files) -> TrainingScripts:
    """Sort the files of a folder by what they are.

    Args:
        paths: its Python files and notebooks, absolute.
        files: what is on disk.
    """
    graph = ImportGraph(paths, files)
    found = TrainingScripts(lines=sum(scan.lines for scan in graph.scans.values()), files=len(graph.scans))
    found.trainers = [path for path, scan in graph.scans.items() if scan.trains]
    frameworks = [path for path, scan in graph.scans.items() if scan.has_framework]
    reaching = graph.reaching([*found.trainers, *frameworks])
    commands = _commands(graph)
    for path, scan in graph.scans.items():
        if path in reaching and (path in commands or _is_run(path, graph, files)) and _may_train(path, graph, files):
            found.scripts.append(path)
        elif scan.has_apex:
            found.users.append(path)
        elif scan.has_torch:
            found.others.append(path)
    found.trainers = [path for path in found.trainers if not _holds_tests(path, files)]
    return found


def _holds_tests(path: Path, files: Files) -> bool:
    try:
        return path.suffix != SUFFIX and _is_test(files.module(path))
    except SourceError:
        return False


def _may_train(path: Path, graph: ImportGraph, files: Files) -> bool:
    reached = graph.reached(path)
    if any(other in graph.scans and graph.scans[other].has_framework for other in reached):
        return True
    if path.suffix == SUFFIX:
        if graph.scans[path].trains:
            return True
        words = frozenset(_WORD.findall(notebook_code(path.read_bytes()).decode("utf-8", "replace")))
        return may_train(path, reached, files, words)
    return may_train(path, reached, files)


def _commands(graph: ImportGraph) -> set[Path]:
    """Files that the packaging of the project makes commands of."""
    found: set[Path] = set()
    for folder in {*graph.roots, *(path.parent for path in graph.scans)}:
        for name in _PACKAGING:
            if folder / name in graph.files:
                try:
                    text = (folder / name).read_text(encoding="utf-8", errors="replace")
                except OSError:
                    continue
                for module in _SCRIPT.findall(text):
                    found |= set(_named(module, folder, graph))
    return found


def _named(module: str, folder: Path, graph: ImportGraph) -> Iterator[Path]:
    for base in (folder, folder / "src"):
        path = base.joinpath(*module.split(".")).with_suffix(".py")
        if path in graph.scans:
            yield path


def _is_run(path: Path, graph: ImportGraph, files: Files) -> bool:
    """Whether a file does something when it is run: it has a main guard, or works as a whole."""
    if path.name == "__main__.py" or path.suffix == SUFFIX:
        return True
    if path.name == "__init__.py":
        return False
    try:
        module = files.module(path)
    except SourceError:
        # Whether it trains cannot be known; the analysis says what is wrong with it.
        return True
    if _is_test(module):
        return False
    if any(isinstance(item, ast.If) and is_main_guard(item) for item in module.tree.body):
        return True
    if graph.importers[path]:
        return False
    names = _own_names(module, graph)
    return any(_works(item, names) for item in module.tree.body)


def _is_test(module: Module) -> bool:
    """Whether the file holds tests for a test runner."""
    has_tests = False
    for node in module.tree.body:
        for alias in node.names if isinstance(node, ast.Import) else ():
            if alias.name in _TEST_RUNNERS:
                return True
        if isinstance(node, ast.ImportFrom) and node.module in _TEST_RUNNERS:
            return True
        has_tests = has_tests or (isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))
    return has_tests and module.path.name.startswith("test_")


def _own_names(module: Module, graph: ImportGraph) -> set[str]:
    """Names that the file defines, or imports from others of the project or from what runs commands."""
    names: set[str] = set()
    for node in module.tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Import):
            names |= {
                bound_name(alias)
                for alias in node.names
                if alias.name in _RUNNERS or graph.leads_to(module.path, alias.name)
            }
        elif isinstance(node, ast.ImportFrom):
            if node.module in _RUNNERS or graph.leads_to(module.path, node.module or "", node.level):
                names |= {bound_name(alias) for alias in node.names}
    return names


def _works(statement: ast.stmt, names: set[str]) -> bool:
    """Whether a statement of a file's own suite runs more than definitions: a loop, or a call of what the file has."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        if isinstance(node, _DEFINITIONS):
            continue
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            return True
        if isinstance(node, ast.Call):
            function: ast.expr = node.func
            while isinstance(function, (ast.Attribute, ast.Call, ast.Subscript)):
                function = function.func if isinstance(function, ast.Call) else function.value
            if isinstance(function, ast.Name) and function.id in names:
                return True
            if isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
                return True
        pending.extend(children(node))
    return False
