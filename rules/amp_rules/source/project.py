"""A project: its files, and what their imports lead to."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from amp_rules.source.configured_path import ConfiguredPath, configured_path
from amp_rules.source.files import Files
from amp_rules.source.modules import Module
from amp_rules.source.renamed_package import own_packages
from amp_rules.source.search_path import added_folders
from amp_rules.source.text import SourceError, read_bytes

_ROOT_MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg", ".hg")
_MAX_PARENTS = 6
"""How far above a file the top of its project is looked for: above that mostly lie other people's folders."""
_MAX_MODULES = 400
"""Files of one script's program; one that imports more is a library with a script in it, and not read to its end."""
_MAX_SETTINGS = 200_000
"""Bytes of a configuration; what is longer is data."""


def is_listed(name: str) -> bool:
    """Whether a name in a folder is of interest to those who look for what the folder holds."""
    return name.endswith((".py", ".yaml", ".yml"))


class Importer:
    """Finds and parses the modules of one project that imports lead to.

    Attributes:
        files: what is on disk.
        probes: the files that were looked for, and whether they were there.
        unreadable: why some could not be parsed.
    """

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self.root = root
        self.files = files or Files()
        self.probes: dict[Path, bool] = {}
        self.unreadable: list[SourceError] = []
        self._modules: dict[Path, Module | None] = {}
        self._located: dict[tuple[Path, str, int], Path | None] = {}

    def load(self, path: Path) -> Module | None:
        """The module of a file of this project, or None where it cannot be read."""
        if path not in self._modules:
            if len(self._modules) >= _MAX_MODULES:
                return None
            try:
                self._modules[path] = self.files.module(path)
            except SourceError as error:
                self.unreadable.append(error)
                self._modules[path] = None
        return self._modules[path]

    @property
    def modules(self) -> list[Module]:
        """The modules loaded so far, in the order of loading."""
        return [module for module in self._modules.values() if module is not None]

    def _exists(self, path: Path) -> bool:
        known = self.probes.get(path)
        if known is None:
            known = self.probes[path] = path in self.files
        return known

    def _at(self, base: Path, parts: list[str]) -> Path | None:
        target = base.joinpath(*parts) if parts else base
        # As in Python, a package comes before a module of the same name.
        if self._exists(package := target / "__init__.py"):
            return package
        if parts and self._exists(file := target.with_name(target.name + ".py")):
            return file
        return None

    def _starts(self, origin: Path) -> list[Path]:
        return [origin.parent]

    def _bases(self, origin: Path) -> list[Path]:
        """Where Python would look: beside the files that it may start from, at the root, and on the way between."""
        bases = []
        for start in self._starts(origin):
            for folder in [start, *start.parents]:
                bases.append(folder)
                if folder == self.root or self.root not in folder.parents:
                    break
        bases.append(self.root / "src")
        for outer in self._outer_roots:
            bases += [outer, outer / "src"]
        return list(dict.fromkeys([*bases, *self.configured.folders]))

    @cached_property
    def _outer_roots(self) -> list[Path]:
        """Projects that this one lies in: their package is installed where one of its examples is run."""
        found = []
        for parent in list(self.root.parents)[:_MAX_PARENTS]:
            if any((parent / marker).exists() for marker in _ROOT_MARKERS):
                found.append(parent)
            if (parent / ".git").exists():
                return found
        return []

    @cached_property
    def configured(self) -> ConfiguredPath:
        """What the packaging of the project and the commands that start its scripts put on the path."""
        key = (configured_path, self.root, self._beside())
        if key not in self.files.kept:
            self.files.kept[key] = configured_path(self.root, self._beside(), self.files)
        found: ConfiguredPath = self.files.kept[key]
        return found

    def _beside(self) -> Path:
        """The folder that scripts are started from besides the top."""
        return self.root

    def locate(self, origin: Path, name: str, level: int = 0) -> Path | None:
        """The project's file that ``import name`` in the file ``origin`` leads to, or None when it is external."""
        key = (origin if level == 0 else origin.parent, name, level)
        if key not in self._located:
            self._located[key] = self._locate(origin, name, level)
        return self._located[key]

    def _locate(self, origin: Path, name: str, level: int) -> Path | None:
        parts = [part for part in name.split(".") if part]
        if level:
            base = origin.parent
            for _ in range(level - 1):
                base = base.parent
            return self._at(base, parts)
        for base in self._bases(origin):
            path = self._at(base, parts)
            if path is not None and path != origin:
                return self._named(origin, parts) or path if _is_empty_package(path) else path
        return self._around(origin, parts)

    def _named(self, origin: Path, parts: list[str]) -> Path | None:
        """The module in a folder that the project puts on the path, for an empty package that only lies on the way.

        ``from solver import Solver`` means ``solver/solver.py`` where ``solver`` is on the path.
        """
        found = (self._at(folder, parts) for folder in self.configured.folders)
        return next((path for path in found if path is not None and path != origin), None)

    def _around(self, origin: Path, parts: list[str]) -> Path | None:
        """The file below a folder around ``origin`` that is called like the package: it needs no ``__init__.py``.

        Nothing else says where the project's top is then; whoever starts the script has put it on the path.
        """
        for folder in list(origin.parents)[:_MAX_PARENTS]:
            if len(parts) > 1 and folder.name == parts[0]:
                path = self._at(folder.parent, parts)
                if path is not None and path != origin:
                    return path
        return None

    def find(self, importer: Module, name: str, level: int = 0) -> Module | None:
        """The project's module that ``import name`` in ``importer`` leads to, or None when it is external."""
        path = self.locate(importer.path, name, level)
        return self.load(path) if path is not None else None


def _is_empty_package(path: Path) -> bool:
    try:
        return path.name == "__init__.py" and path.stat().st_size == 0
    except OSError:
        return False


def marked_root(file: Path) -> Path | None:
    """The nearest folder above ``file`` that holds what only the top of a project does."""
    for parent in list(file.parents)[:_MAX_PARENTS]:
        if any((parent / marker).exists() for marker in _ROOT_MARKERS):
            return parent
    return None


def project_root(file: Path) -> Path:
    """The folder of the project that ``file`` belongs to."""
    marked = marked_root(file)
    if marked is not None:
        return marked
    folder = file.parent
    # Packages reach up as far as their __init__.py files do; a script stands alone. No import can name `my-project`.
    while folder.name.isidentifier() and (folder / "__init__.py").exists() and folder.parent != folder:
        folder = folder.parent
    return folder


class Project(Importer):
    """The entry script and every module of the same project that it can import.

    Attributes:
        entry: the script.
        listed: the folders that were searched for modules and configurations, and the names found.
        settings: the configurations that were read.
    """

    def __init__(self, entry: Path, files: Files | None = None) -> None:
        self.entry_path = entry.resolve()
        super().__init__(project_root(self.entry_path), files)
        self._folders: dict[str, bool] = {}
        self._entries: dict[Path, list[Path]] = {}
        self.listed: dict[Path, tuple[str, ...]] = {}
        self.settings: set[Path] = set()
        self.entry = self.files.entry(self.entry_path)
        self._modules[self.entry_path] = self.entry

    def _starts(self, origin: Path) -> list[Path]:
        return [self.entry_path.parent, origin.parent]

    def _beside(self) -> Path:
        return self.entry_path.parent

    def _locate(self, origin: Path, name: str, level: int) -> Path | None:
        found = super()._locate(origin, name, level)
        # ``from train import Workspace`` in ``train.py``, for the sake of pickles. Only the script's folder
        # is on the path: in ``loggers/wandb.py`` the library is meant.
        if found is None and origin == self.entry_path and name == origin.stem:
            return origin
        head, _, rest = name.partition(".")
        if found is None and rest and not level and head in self._own_packages:
            return self._at(self._own_packages[head], rest.split("."))
        return found

    @cached_property
    def _own_packages(self) -> dict[str, Path]:
        """Folders around the entry that it imports from by another name than they have here."""
        on_path = set(self.path_entries)
        around = [self.entry_path.parent, *self.entry_path.parents[1:_MAX_PARENTS]]
        packages = [folder for folder in around if folder.parent in on_path and self._exists(folder / "__init__.py")]
        if not packages:
            return {}
        return own_packages(
            self.entry,
            packages,
            self._at,
            self.load,
            lambda name: super(Project, self)._locate(self.entry_path, name, 0) is not None,
        )

    def _bases(self, origin: Path) -> list[Path]:
        return list(dict.fromkeys([*super()._bases(origin), *self.path_entries, *self._own_entries(origin)]))

    def _own_entries(self, origin: Path) -> list[Path]:
        """Folders that a file puts on ``sys.path`` itself, for the imports below: ``models/net.py`` adds ``ops``."""
        module = self._modules.get(origin)
        if module is None or origin == self.entry_path:
            return []
        if origin not in self._entries:
            text = module.source.text
            self._entries[origin] = added_folders(module) if "sys.path" in text or "addsitedir" in text else []
        return self._entries[origin]

    @cached_property
    def path_entries(self) -> list[Path]:
        """Folders that the entry, or a file beside it that it imports first, puts on ``sys.path``."""
        found = added_folders(self.entry)
        for node in self.entry.tree.body:
            # ``import _init_paths``
            for alias in node.names if isinstance(node, ast.Import) else ():
                beside = self.entry_path.with_name(f"{alias.name}.py")
                if "path" in alias.name and beside != self.entry_path and self._exists(beside):
                    module = self.load(beside)
                    found.extend(added_folders(module) if module is not None else ())
        return found

    def folder(self, importer: Module, name: str) -> Path | None:
        """The folder of a package of the project, which needs no ``__init__.py``."""
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts):
            return None
        folders = (base.joinpath(*parts) for base in self._bases(importer.path))
        return next((folder for folder in folders if self.files.is_folder(folder)), None)

    def modules_in(self, folder: Path) -> list[Path]:
        """The Python files of a folder."""
        return [folder / name for name in self._listed(folder) if name.endswith(".py")]

    def _listed(self, folder: Path) -> tuple[str, ...]:
        known = self.listed.get(folder)
        if known is None:
            known = self.listed[folder] = tuple(filter(is_listed, self.files.names(folder)))
        return known

    def rest_on(self, paths: Iterable[Path]) -> None:
        """Note files that a decision rests on without importing them, and what else is in their folders."""
        for path in paths:
            self.settings.add(path)
            self._listed(path.parent)

    def settings_in(self, folder: Path) -> list[str]:
        """The names of the configurations in a folder."""
        names = self._listed(folder) if self.files.is_folder(folder) else ()
        return [name for name in names if not name.endswith(".py")]

    def has_settings(self, path: Path) -> bool:
        """Whether there is such a configuration."""
        return self._exists(path)

    def settings_text(self, path: Path) -> str:
        """What a configuration says.

        Raises:
            SourceError: it cannot be read, or is very large.
        """
        self.settings.add(path)
        return read_bytes(path, _MAX_SETTINGS).decode("utf-8-sig", "replace").replace("\r\n", "\n")

    def is_folder(self, importer: Module, name: str) -> bool:
        """Whether the dotted name is a folder of this project, which is a package even without ``__init__.py``."""
        if name not in self._folders:
            parts = [part for part in name.split(".") if part.isidentifier()]
            whole = bool(parts) and len(parts) == name.count(".") + 1
            bases = self._bases(importer.path) if whole else []
            self._folders[name] = any(self.files.is_folder(base.joinpath(*parts)) for base in bases)
        return self._folders[name]
