"""Which files a run is about."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from amp_migrate.problems import Problem, UserError, shown
from amp_migrate.run.foreign import foreign_file, foreign_folder, never_own
from amp_migrate.run.ignores import Rules, is_ignored, rules_above, rules_in, rules_of_repository

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

NOTEBOOK = ".ipynb"
_MAX_DEPTH = 100
_MAX_FILES = 100_000
# More of what was passed over is only counted.
_LISTED = 3


@dataclass(frozen=True)
class Target:
    """A file to deal with; ``named`` when the user wrote its very path."""

    path: Path
    named: bool


@dataclass
class Discovery:
    """What ``paths`` stand for.

    Attributes:
        targets: the files found.
        problems: those that cannot be taken.
        barren: the folders that hold none.
        notes: what was passed over, for people.
    """

    targets: list[Target] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    barren: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def discover(
    paths: Sequence[Path],
    exclude: Sequence[str] = (),
    root: Path | None = None,
    *,
    own_only: bool = False,
) -> Discovery:
    """Find the Python files and notebooks that ``paths`` stand for: files as named, folders walked in sorted order.

    Every path is resolved, as Python resolves a script before it looks for the script's modules, and comes
    once. ``exclude`` (gitignore patterns relative to ``root``) and ``.gitignore`` hold for walked files only, and so
    does ``own_only``, which passes over generated, vendored and overlong code.
    """
    found = Discovery()
    seen: dict[Path, int] = {}
    walk = _Walk(found, ignore_spec(exclude), root, own_only)

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
                files = walk.files(path.resolve())
                for file in files:
                    add(file, named=False)
                if not files and len(found.problems) == before and not walk.passed_over:
                    found.barren.append(path)
            elif reason := _unsuitable(path):
                found.problems.append(Problem(path.absolute(), reason))
            else:
                add(path, named=True)
        except (OSError, RuntimeError) as error:
            # RuntimeError is what resolve() says about a loop of links before Python 3.13.
            strerror = error.strerror if isinstance(error, OSError) else None
            found.problems.append(Problem(path.absolute(), f"cannot be read: {strerror or error}"))
    found.notes += walk.notes()
    return found


def _unsuitable(path: Path) -> str | None:
    """Say why a named path is neither a Python file nor a notebook, or return None."""
    if not path.exists():
        return f"no such file or directory{meant(path)}" if not path.is_symlink() else "is a link to nothing"
    if path.suffix in (".py", ".pyw", NOTEBOOK):
        return None if path.is_file() else "is not a regular file"
    if not path.suffix and path.is_file():
        with path.open("rb") as file:
            first = file.readline(200)
        if first.startswith(b"#!") and b"python" in first:
            return None
    return "is not a Python file (.py)"


def meant(path: Path) -> str:
    """Ask whether a file beside a path that does not exist was meant; empty if none has such a name."""
    try:
        names = [item.name for item in path.parent.iterdir() if item.suffix in (".py", NOTEBOOK) or item.is_dir()]
    except OSError:
        return ""
    close = get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


class _Walk:
    """Walks folders; ``passed_over`` holds what was left out, by the reason."""

    def __init__(
        self,
        found: Discovery,
        exclude: GitIgnoreSpec | None,
        root: Path | None,
        own_only: bool,
    ) -> None:
        self.found = found
        self.own_only = own_only
        self.exclude = exclude
        self.root = (root or Path.cwd()).resolve()
        self.passed_over: defaultdict[str, list[Path]] = defaultdict(list)

    def files(self, folder: Path) -> list[Path]:
        """Return the Python files below ``folder``, sorted; none where they are too many."""
        files = list(islice(self._below(folder, rules_above(folder), 0), _MAX_FILES + 1))
        if len(files) <= _MAX_FILES:
            return files
        message = f"holds more than {_MAX_FILES} Python files; name a folder further down, or exclude some"
        self.found.problems.append(Problem(folder, message))
        return []

    def notes(self) -> Iterator[str]:
        """Say what was passed over."""
        for reason, paths in sorted(self.passed_over.items()):
            names = ", ".join(shown(path) for path in paths[:_LISTED])
            more = f" and {len(paths) - _LISTED} more" if len(paths) > _LISTED else ""
            yield f"not searched for scripts, {reason}: {names}{more}"

    def _below(self, folder: Path, rules: tuple[Rules, ...], depth: int) -> Iterator[Path]:
        if depth > _MAX_DEPTH:
            self.passed_over[f"more than {_MAX_DEPTH} folders deep"].append(folder)
            return
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            self.found.problems.append(Problem(folder, f"cannot be read: {error.strerror or error}"))
            return
        if depth and any(entry.name == ".git" for entry in entries):
            # A repository of its own, such as a submodule: the patterns of the outer one end here.
            rules = rules_of_repository(folder)
        rules = (*rules_in(folder), *rules)
        for entry in entries:
            path = folder / entry.name
            if entry.name.startswith("."):
                continue
            # Links to folders are not followed: they may lead in a circle.
            if entry.is_dir(follow_symlinks=False):
                if not never_own(path) and not self._is_ignored(path, True, rules) and not self._foreign(path, True):
                    yield from self._below(path, rules, depth + 1)
            elif entry.name.endswith((".py", NOTEBOOK)) and path.is_file() and not self._is_ignored(path, False, rules):
                if self._foreign(path, False):
                    continue
                if os.access(path, os.R_OK):
                    yield path
                else:
                    self.found.problems.append(Problem(path, "cannot be read: permission denied"))

    def _foreign(self, path: Path, is_folder: bool) -> bool:
        reason = (foreign_folder if is_folder else foreign_file)(path) if self.own_only else None
        if reason is not None:
            self.passed_over[reason].append(path)
        return reason is not None

    def _is_ignored(self, path: Path, is_folder: bool, rules: tuple[Rules, ...]) -> bool:
        if self.exclude is not None and path.is_relative_to(self.root):
            relative = path.relative_to(self.root).as_posix()
            if self.exclude.check_file(relative + "/" if is_folder else relative).include:
                return True
        return is_ignored(path, is_folder, rules)


def ignore_spec(lines: Sequence[str]) -> GitIgnoreSpec | None:
    """Return what gitignore patterns match, or None where there are none.

    Raises:
        UserError: one of them is no pattern.
    """
    if not lines:
        return None
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise UserError(f"exclude: {error}") from error
