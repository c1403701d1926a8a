"""The files of a project and what its imports lead to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from amp_rules.program.source import SourceError, SourceFile, parse_source, read_source
from amp_rules.report import Position, Span

_NEWLINE = re.compile(r"\r\n|\r|\n")
_ROOT_MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg", ".hg")
_MAX_PARENTS = 6
_MAX_MODULES = 400


class Module:
    """One parsed file.

    Attributes:
        path: the file, absolute.
        source: its text and encoding.
        tree: its syntax tree; the nodes are the keys of everything the model knows.
        is_entry: whether it is run as ``__main__``.
    """

    def __init__(self, source: SourceFile, tree: ast.Module, is_entry: bool) -> None:
        self.path = source.path
        self.source = source
        self.tree = tree
        self.is_entry = is_entry

    def __repr__(self) -> str:
        return f"Module({self.path.name})"

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text, as Python counts them, without line ends."""
        return _NEWLINE.split(self.source.text)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The syntactic parent of each node."""
        found: dict[ast.AST, ast.AST] = {}
        stack: list[ast.AST] = [self.tree]
        while stack:
            node = stack.pop()
            for child in ast.iter_child_nodes(node):
                found[child] = node
                stack.append(child)
        return found

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the parents of ``node``, the nearest first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def _column(self, line: int, byte_column: int) -> int:
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        if text.isascii():
            return byte_column
        return len(text.encode("utf-8")[:byte_column].decode("utf-8", "replace"))

    def start(self, node: ast.AST) -> tuple[int, int]:
        """Line (from 1) and column (from 0, in code points) where ``node`` begins."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return line, self._column(line, column)

    def end(self, node: ast.AST) -> tuple[int, int]:
        """Line (from 1) and column (from 0, in code points) just past ``node``."""
        line, column = getattr(node, "end_lineno", None), getattr(node, "end_col_offset", None)
        if line is None or column is None:
            return self.start(node)
        return line, self._column(line, column)

    def span(self, node: ast.AST) -> Span:
        """The range of ``node`` as people count it: lines and columns from 1."""
        (line, column), (end_line, end_column) = self.start(node), self.end(node)
        return Span(Position(line, column + 1), Position(end_line, end_column + 1))

    def text(self, node: ast.AST) -> str:
        """The node's own source, on one line and shortened when it is long."""
        (line, column), (end_line, end_column) = self.start(node), self.end(node)
        rows = self.lines[line - 1 : end_line]
        if not rows:
            return ""
        if len(rows) == 1:
            found = rows[0][column:end_column]
        else:
            found = " ".join([rows[0][column:], *(row.strip() for row in rows[1:-1]), rows[-1][:end_column].strip()])
        return found if len(found) <= 80 else found[:77] + "..."


def parse(source: SourceFile, *, is_entry: bool = False) -> Module:
    """Parse a file.

    Raises:
        SourceError: the text is not Python that this interpreter understands.
    """
    return Module(source, parse_source(source), is_entry)


class Importer:
    """Finds and parses the modules of one project that imports lead to."""

    def __init__(self, root: Path, overrides: Mapping[Path, SourceFile] | None = None) -> None:
        self.root = root
        self.overrides = {path.resolve(): source for path, source in (overrides or {}).items()}
        self._modules: dict[Path, Module | None] = {}
        self._existing: dict[Path, bool] = {}
        self.unreadable: list[SourceError] = []

    def _read(self, path: Path) -> SourceFile:
        found = self.overrides.get(path)
        return found if found is not None else read_source(path)

    def load(self, path: Path) -> Module | None:
        """The module of a file of this project, or None where it cannot be read."""
        if path not in self._modules:
            if len(self._modules) >= _MAX_MODULES:
                return None
            try:
                self._modules[path] = parse(self._read(path))
            except SourceError as error:
                self.unreadable.append(error)
                self._modules[path] = None
        return self._modules[path]

    @property
    def modules(self) -> list[Module]:
        """The modules loaded so far, in the order of loading."""
        return [module for module in self._modules.values() if module is not None]

    def _exists(self, path: Path) -> bool:
        known = self._existing.get(path)
        if known is None:
            known = self._existing[path] = path in self.overrides or path.is_file()
        return known

    def _at(self, base: Path, parts: list[str]) -> Path | None:
        target = base.joinpath(*parts) if parts else base
        if parts and self._exists(file := target.with_name(target.name + ".py")):
            return file
        if self._exists(package := target / "__init__.py"):
            return package
        return None

    def _starts(self, importer: Module) -> list[Path]:
        return [importer.path.parent]

    def _bases(self, importer: Module) -> list[Path]:
        """Where Python would look: beside the files that it may start from, at the root, and on the way between."""
        bases = []
        for start in self._starts(importer):
            for folder in [start, *start.parents]:
                bases.append(folder)
                if folder == self.root or self.root not in folder.parents:
                    break
        bases.append(self.root / "src")
        return list(dict.fromkeys(bases))

    def locate(self, importer: Module, name: str, level: int = 0) -> Path | None:
        """The project's file that ``import name`` in ``importer`` leads to, or None when it is external."""
        parts = [part for part in name.split(".") if part]
        if level:
            base = importer.path.parent
            for _ in range(level - 1):
                base = base.parent
            return self._at(base, parts)
        for base in self._bases(importer):
            path = self._at(base, parts)
            if path is not None and path != importer.path:
                return path
        return None

    def find(self, importer: Module, name: str, level: int = 0) -> Module | None:
        """The project's module that ``import name`` in ``importer`` leads to, or None when it is external."""
        path = self.locate(importer, name, level)
        return self.load(path) if path is not None else None


def project_root(file: Path) -> Path:
    """The folder of the project that ``file`` belongs to."""
    folder = file.parent
    for parent in [folder, *folder.parents][:_MAX_PARENTS]:
        if any((parent / marker).exists() for marker in _ROOT_MARKERS):
            return parent
    # Packages reach up as far as their __init__.py files do; a script stands alone.
    while (folder / "__init__.py").exists() and folder.parent != folder:
        folder = folder.parent
    return folder


class Project(Importer):
    """The entry script and every module of the same project that it can import."""

    def __init__(self, entry: Path, overrides: Mapping[Path, SourceFile] | None = None) -> None:
        self.entry_path = entry.resolve()
        super().__init__(project_root(self.entry_path), overrides)
        self._folders: dict[str, bool] = {}
        self.entry = parse(self._read(self.entry_path), is_entry=True)
        self._modules[self.entry_path] = self.entry

    def _starts(self, importer: Module) -> list[Path]:
        return [self.entry_path.parent, importer.path.parent]

    def _bases(self, importer: Module) -> list[Path]:
        return list(dict.fromkeys([*super()._bases(importer), *self._path_entries]))

    @cached_property
    def _path_entries(self) -> list[Path]:
        """Folders that the entry puts on ``sys.path`` by a literal, relative to itself."""
        found = []
        for node in ast.walk(self.entry.tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr in ("append", "insert") and ast.unparse(node.func.value) == "sys.path":
                for argument in node.args:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        found.append((self.entry_path.parent / argument.value).resolve())
        return found

    def is_folder(self, importer: Module, name: str) -> bool:
        """Whether the dotted name is a folder of this project, which is a package even without ``__init__.py``."""
        if name not in self._folders:
            parts = [part for part in name.split(".") if part.isidentifier()]
            whole = bool(parts) and len(parts) == name.count(".") + 1
            self._folders[name] = whole and any(base.joinpath(*parts).is_dir() for base in self._bases(importer))
        return self._folders[name]
