"""Temporary copies of a project, so that runs change nothing of the user's and see nothing of each other's."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from amp_rules.source.project import marked_root

from amp_migrate.git import git_root
from amp_migrate.problems import UserError, shown

_LEFT_OUT = frozenset(
    {".git", ".hg", "__pycache__", "node_modules", ".tox", ".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
)
_NAMED = 5


@dataclass(frozen=True)
class CopiedProject:
    """What has to be copied for a script to run.

    Attributes:
        root: the folder that is copied.
        script: the script, below it.
        cwd: the working directory that the script gets, below it.
        links: what is linked instead of copied.
    """

    root: Path
    script: Path
    cwd: Path
    links: tuple[Path, ...] = ()

    def within(self, copy: Path, path: Path) -> Path:
        """Where something below :attr:`root` is in a copy."""
        return copy / path.relative_to(self.root)

    def original(self, copy: Path, path: Path) -> Path | None:
        """Where something in a copy is in the project; None for what lies elsewhere."""
        try:
            return self.root / path.relative_to(copy)
        except ValueError:
            return None


def project_of(
    script: Path,
    cwd: Path,
    links: Sequence[Path] = (),
    *,
    as_module: bool = False,
    modules: Iterable[Path] = (),
) -> CopiedProject:
    """Find what belongs to a script: its git work tree, else what looks like a project, else its folder.

    ``modules`` are files that it imports: the folder that holds them all is copied, and what that lies in where it is a
    package that they import by its name.

    The script runs in the same place relative to the project as ``cwd`` is, and beside itself where that is elsewhere.
    One that runs ``as_module`` has its name, and what it imports, from ``cwd``, which so is a part of the project.

    Raises:
        UserError: something to be linked is not in there.
    """
    script, modules = script.resolve(), list(modules)
    cwd = cwd.resolve()
    root = git_root(script) or marked_root(script) or script.parent
    if root in (Path.home(), Path(root.anchor)):
        # A home that is kept in git is no project.
        root = script.parent
    if as_module and script.is_relative_to(cwd) and not cwd.is_relative_to(root):
        root = cwd
    whole = Path(os.path.commonpath([root, *modules]))
    while _is_imported(whole, [script, *modules]):
        whole = whole.parent
    if whole not in (Path.home(), Path(root.anchor)):
        root = whole
    placed = []
    for link in links:
        path = Path(os.path.abspath(link))
        if not os.path.lexists(path):
            raise UserError(f"--link {link}: no such file or directory")
        if not path.is_relative_to(root) or path == root or script.is_relative_to(path):
            raise UserError(f"--link {link}: it must be a part of {shown(root)} that the script does not lie in")
        placed.append(path)
    return CopiedProject(root, script, cwd if cwd.is_relative_to(root) else script.parent, tuple(placed))


def _is_imported(folder: Path, modules: Iterable[Path]) -> bool:
    """Whether a folder is a package that some of these modules import by its name."""
    inside = (folder / name for name in (folder.name, f"{folder.name}.py"))
    if not (folder / "__init__.py").is_file() or any(path.exists() for path in inside):
        return False
    statement = re.compile(rb"^[ \t]*(?:from|import)[ \t]+%s\b" % re.escape(folder.name.encode()), re.MULTILINE)
    return any(path.is_file() and statement.search(path.read_bytes()) for path in modules)


@contextmanager
def workplace(keep: Path | None) -> Iterator[Path]:
    """Yield an empty folder for copies and records; it is removed at the end, unless it is to be kept.

    Raises:
        UserError: the folder to keep exists and is not empty, or cannot be made.
    """
    if keep is not None:
        try:
            keep.mkdir(parents=True, exist_ok=True)
            if any(keep.iterdir()):
                raise UserError(f"--keep {keep}: the folder is not empty")
        except OSError as error:
            raise UserError(f"--keep {keep}: cannot be used: {error.strerror or error}") from error
        yield keep.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="amp-verify-")).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_project(project: CopiedProject, target: Path, limit: int, besides: Path | None = None) -> None:
    """Copy a project to a folder that does not exist yet.

    Args:
        project: what is copied.
        target: the folder.
        limit: bytes that a copy may take.
        besides: what stays behind: the workplace, where it lies in the project.

    Raises:
        UserError: it is larger than ``limit`` bytes, or cannot be read.
    """
    sizes: defaultdict[Path, int] = defaultdict(int)
    files: list[tuple[Path, Path]] = []
    for path, to in _walk(project, project.root, target, besides):
        files.append((path, to))
        if not path.is_symlink():
            sizes[_top(path, project.root)] += _size(path)
        if sum(sizes.values()) > limit:
            raise UserError(_too_large(project, limit, besides))
    try:
        target.mkdir(parents=True)
        for path, to in files:
            to.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir() and not path.is_symlink():
                to.mkdir(exist_ok=True)
            else:
                shutil.copy2(path, to, follow_symlinks=False)
        for link in project.links:
            to = project.within(target, link)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.symlink_to(link, target_is_directory=link.is_dir())
        project.within(target, project.cwd).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        where = f" {shown(Path(error.filename))}" if error.filename else ""
        raise UserError(f"the project cannot be copied:{where}: {error.strerror or error}") from error


def parse_size(text: str) -> int:
    """Return ``2G``, ``500M``, ``1.5GiB`` or a number of bytes as bytes.

    Raises:
        ValueError: it is none of these.
    """
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    factor = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}.get(number[-1:], 1)
    value = float(number[:-1] if factor > 1 else number) * factor
    if not 0 < value < 2**60:
        raise ValueError(text)
    return int(value)


def size_in_words(size: float) -> str:
    """Return ``1.5 GiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _walk(project: CopiedProject, folder: Path, target: Path, besides: Path | None) -> Iterator[tuple[Path, Path]]:
    """Yield what is to be copied and where to, folders before what they hold."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"{shown(folder)}: cannot be read: {error.strerror or error}") from error
    for entry in entries:
        path = Path(entry.path)
        if entry.name in _LEFT_OUT or path in project.links or path == besides:
            continue
        if entry.is_symlink() or entry.is_file():
            yield path, target / entry.name
        elif entry.is_dir() and not _is_environment(path):
            yield path, target / entry.name
            yield from _walk(project, path, target / entry.name, besides)
        # Sockets and pipes are of no use to another process.


def _is_environment(folder: Path) -> bool:
    """Whether a virtual environment or a conda environment lies there."""
    return (folder / "pyvenv.cfg").exists() or (folder / "conda-meta").is_dir()


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _top(path: Path, root: Path) -> Path:
    """The folder directly below ``root`` that holds ``path``, or the file itself."""
    return root / path.relative_to(root).parts[0]


def _too_large(project: CopiedProject, limit: int, besides: Path | None) -> str:
    sizes: defaultdict[Path, int] = defaultdict(int)
    for path, _ in _walk(project, project.root, project.root, besides):
        if not path.is_symlink():
            sizes[_top(path, project.root)] += _size(path)
    largest = sorted(sizes, key=lambda path: -sizes[path])[:_NAMED]
    listed = ", ".join(f"{shown(path)} ({size_in_words(sizes[path])})" for path in largest)
    return (
        f"{shown(project.root)} holds more than {size_in_words(limit)}, and each run gets a copy of it; the largest: "
        f"{listed}. Link what the script only reads with --link PATH, or allow more with --copy-limit"
    )
