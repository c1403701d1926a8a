"""Which files a run is about."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from amp_migrate.problems import Problem

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

NOTEBOOK = ".ipynb"
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "__pypackages__"})
# Files whose presence tells a virtual or conda environment apart from a folder that is only called "env".
_ENVIRONMENT_MARKERS = ("pyvenv.cfg", "conda-meta")


@dataclass(frozen=True)
class Target:
    """A file to deal with; ``named`` when the user wrote its very path."""

    path: Path
    named: bool


@dataclass
class Discovery:
    """The files found, those that cannot be taken, and the folders that hold none."""

    targets: list[Target] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    barren: list[Path] = field(default_factory=list)


def discover(
    paths: Sequence[Path],
    exclude: Sequence[str] = (),
    root: Path | None = None,
    *,
    notebooks: bool = False,
) -> Discovery:
    """Find the Python files that ``paths`` stand for: files as named, folders walked in sorted order.

    Every path is resolved, as Python resolves a script before it looks for the script's modules, and comes
    once. ``exclude`` (gitignore patterns relative to ``root``) and ``.gitignore`` hold for walked files only.
    """
    found = Discovery()
    seen: dict[Path, int] = {}
    walk = _Walk(found, ignore_spec(exclude), root, (".py", NOTEBOOK) if notebooks else (".py",))

    def add(path: Path, named: bool) -> None:
        resolved = path.resolve()
        if resolved not in seen:
            seen[resolved] = len(found.targets)
            found.targets.append(Target(resolved, named))
        elif named:
            found.targets[seen[resolved]] = Target(resolved, named)

    for path in paths:
        try:
            if path.is_dir():
                before = len(found.problems)
                files = list(walk.files(path.resolve()))
                for file in files:
                    add(file, named=False)
                if not files and len(found.problems) == before:
                    found.barren.append(path)
            elif reason := _unsuitable(path, notebooks):
                found.problems.append(Problem(path.absolute(), reason))
            else:
                add(path, named=True)
        except (OSError, RuntimeError) as error:
            # RuntimeError is what resolve() says about a loop of links before Python 3.13.
            strerror = error.strerror if isinstance(error, OSError) else None
            found.problems.append(Problem(path.absolute(), f"cannot be read: {strerror or error}"))
    return found


def git_root(path: Path) -> Path | None:
    """Return the folder above ``path`` that is a git work tree, or None."""
    for folder in path.parents:
        if (folder / ".git").exists():
            return folder
    return None


def _unsuitable(path: Path, notebooks: bool) -> str | None:
    """Say why a named path is no Python file, or return None."""
    if not path.exists():
        return "no such file or directory" if not path.is_symlink() else "is a link to nothing"
    if path.suffix == NOTEBOOK and not notebooks:
        return "notebooks are not supported yet"
    if path.suffix in (".py", ".pyw", NOTEBOOK):
        return None if path.is_file() else "is not a regular file"
    if not path.suffix and path.is_file():
        with path.open("rb") as file:
            first = file.readline(200)
        if first.startswith(b"#!") and b"python" in first:
            return None
    return "is not a Python file (.py)"


@dataclass(frozen=True)
class _Rule:
    """The ignore patterns of one folder."""

    folder: Path
    spec: GitIgnoreSpec

    def verdict(self, path: Path, is_folder: bool) -> bool | None:
        """Return True for ignored, False for taken in again, None for not mentioned."""
        try:
            relative = path.relative_to(self.folder).as_posix()
        except ValueError:
            return None
        return self.spec.check_file(relative + "/" if is_folder else relative).include


class _Walk:
    def __init__(
        self, found: Discovery, exclude: GitIgnoreSpec | None, root: Path | None, suffixes: tuple[str, ...]
    ) -> None:
        self.found = found
        self.suffixes = suffixes
        self.exclude = _Rule((root or Path.cwd()).resolve(), exclude) if exclude else None

    def files(self, folder: Path) -> Iterator[Path]:
        """Yield the Python files below ``folder``, sorted."""
        yield from self._below(folder, _rules_above(folder))

    def _below(self, folder: Path, rules: tuple[_Rule, ...]) -> Iterator[Path]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            self.found.problems.append(Problem(folder, f"cannot be read: {error.strerror or error}"))
            return
        rules = (*_rules_in(folder), *rules)
        for entry in entries:
            path = folder / entry.name
            if entry.name.startswith("."):
                continue
            # Links to folders are not followed: they may lead in a circle.
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder:
                if not _is_foreign(path) and not self._is_ignored(path, True, rules):
                    yield from self._below(path, rules)
            elif entry.name.endswith(self.suffixes) and path.is_file() and not self._is_ignored(path, False, rules):
                yield path

    def _is_ignored(self, path: Path, is_folder: bool, rules: tuple[_Rule, ...]) -> bool:
        if self.exclude and self.exclude.verdict(path, is_folder):
            return True
        # As in git, the innermost file that says anything about the path decides.
        verdicts = (rule.verdict(path, is_folder) for rule in rules)
        return next((verdict for verdict in verdicts if verdict is not None), False)


def _is_foreign(folder: Path) -> bool:
    """Tell folders that hold nobody's own training scripts."""
    if folder.name in _SKIPPED_FOLDERS or any((folder / name).exists() for name in _ENVIRONMENT_MARKERS):
        return True
    # The copy that --vendor leaves beside a script.
    return folder.name == "amp_runtime" and (folder / "__init__.py").exists()


def _rules_above(folder: Path) -> tuple[_Rule, ...]:
    """Return the ignore files from ``folder``'s parent up to the work tree's root, innermost first."""
    root = git_root(folder / "any")
    if root is None:
        return ()
    rules: list[_Rule] = []
    current = folder
    while current != root:
        current = current.parent
        rules += _rules_in(current)
    return (*rules, *_rules_from(root / ".git" / "info" / "exclude", root))


def _rules_in(folder: Path) -> tuple[_Rule, ...]:
    return _rules_from(folder / ".gitignore", folder)


def _rules_from(file: Path, folder: Path) -> tuple[_Rule, ...]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    spec = ignore_spec(lines)
    return (_Rule(folder, spec),) if spec else ()


def ignore_spec(lines: Sequence[str]) -> GitIgnoreSpec | None:
    """Return what gitignore patterns match, or None where there are none."""
    if not lines:
        return None
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)
