"""What git knows about files: which work tree they lie in, and whether it holds what they hold now.

Where the work tree and its folders are is read from the file system, so that it is known without git as well.
"""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Windows takes 32 767 characters on a command line, others more.
_MAX_ARGUMENTS = 24_000
_PATIENCE = 120.0
# A hook or an alias that runs this program sets these, and git would look at another repository because of them.
_REPOSITORY_VARIABLES = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_GLOB_PATHSPECS",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_ICASE_PATHSPECS",
)
IGNORED = "git ignores it"
_CONFLICTS = frozenset({"DD", "AU", "UD", "UA", "DU", "AA", "UU"})


class GitError(Exception):
    """Git is not there, or does not answer."""


@dataclass
class Uncommitted:
    """The files that git could not give back.

    Attributes:
        files: what is uncommitted about each, in words.
        unknown: why git could not tell, for each work tree where it could not.
    """

    files: dict[Path, str] = field(default_factory=dict)
    unknown: dict[Path, str] = field(default_factory=dict)


def git_root(path: Path) -> Path | None:
    """Return the nearest folder above ``path`` that is a git work tree, or None."""
    return next(git_roots(path), None)


def git_roots(path: Path) -> Iterator[Path]:
    """Yield the git work trees that ``path`` lies in, the innermost first: a submodule lies in two."""
    for folder in path.parents:
        # Path.exists would raise where the folder may not be searched.
        if os.path.lexists(folder / ".git"):
            yield folder


def git_folder(root: Path) -> Path | None:
    """Return the folder in which git keeps what belongs to one work tree, or None where there is none."""
    place = root / ".git"
    try:
        if place.is_dir():
            return place
        # The work trees of `git worktree` and submodules have a file that names the folder.
        text = os.fsdecode(place.read_bytes()).strip()
        if not text.startswith("gitdir:"):
            return None
        folder = root / text.removeprefix("gitdir:").strip()
        return folder.resolve() if folder.is_dir() else None
    except OSError:
        return None


def common_folder(root: Path) -> Path | None:
    """Return the folder that all work trees of one repository share."""
    folder = git_folder(root)
    if folder is None:
        return None
    try:
        return (folder / os.fsdecode((folder / "commondir").read_bytes()).strip()).resolve()
    except OSError:
        return folder


def global_excludes(root: Path) -> Path | None:
    """Return the file of ignore patterns that the user keeps for all repositories."""
    try:
        answer = _git(root, ["config", "--type=path", "--get", "core.excludesFile"], statuses=(0, 1))
    except GitError:
        answer = b""
    name = os.fsdecode(answer.rstrip(b"\n"))
    if name:
        return root / name
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base) / "git" / "ignore"


def uncommitted(paths: Sequence[Path]) -> Uncommitted:
    """Ask git which of ``paths`` it could not give back as they are: changed, staged, untracked or ignored ones.

    Files outside of any work tree are never among them. Git is called once for each work tree, and more often only
    where the paths are too many for one call.
    """
    trees: defaultdict[Path, list[Path]] = defaultdict(list)
    for path in paths:
        root = git_root(path)
        if root is not None:
            trees[root].append(path)
    found = Uncommitted()
    for root, files in sorted(trees.items()):
        try:
            for batch in _batches([str(file.relative_to(root)) for file in sorted(files)]):
                found.files |= {root / name: words for name, words in _status(root, batch)}
        except GitError as error:
            found.unknown[root] = str(error)
    return found


def changed_since(root: Path, revision: str) -> dict[Path, bytes | None]:
    """Return what the files of a work tree that differ from a revision held then; None for those that it did not have.

    Raises:
        GitError: git does not know the revision, or does not answer.
    """
    asked = ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"]
    commit = os.fsdecode(_git(root, asked, statuses=(0, 1))).strip()
    if not commit:
        raise GitError("git knows no such revision")
    # Without renames: each path is either there or not.
    answer = _git(root, ["diff", "--name-status", "--no-renames", "-z", commit, "--"])
    items = iter(os.fsdecode(answer).split("\0"))
    found: dict[Path, bytes | None] = {}
    for status in items:
        if status:
            name = next(items)
            found[root / name] = None if status == "A" else _git(root, ["cat-file", "blob", f"{commit}:{name}"])
    untracked = os.fsdecode(_git(root, ["ls-files", "--others", "--exclude-standard", "-z"]))
    return found | {root / name: None for name in untracked.split("\0") if name.endswith(".py")}


def _status(root: Path, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what git says about the files: nothing about those that are as in the last commit."""
    options = ["--porcelain=v1", "-z", "--untracked-files=all", "--ignored", "--ignore-submodules=all"]
    answer = os.fsdecode(_git(root, ["status", *options, "--", *names]))
    items = iter(answer.split("\0"))
    for item in items:
        if not item:
            continue
        code, name = item[:2], item[3:]
        if "R" in code or "C" in code:
            # The name that the file had before stands in an item of its own.
            next(items, None)
        yield name, _in_words(code)


def _in_words(code: str) -> str:
    if code == "??":
        return "it is not in git yet"
    if code == "!!":
        return IGNORED
    if code in _CONFLICTS:
        return "it is in a merge conflict"
    staged, changed = code[0] != " ", code[1] != " "
    if staged and changed:
        return "it holds staged and other changes"
    return "it holds staged changes" if staged else "it holds uncommitted changes"


def _git(root: Path, arguments: Sequence[str], statuses: tuple[int, ...] = (0,)) -> bytes:
    environment = {key: value for key, value in os.environ.items() if key not in _REPOSITORY_VARIABLES}
    # Paths are no patterns, the index is not written, and messages are those that are known.
    environment |= {"GIT_LITERAL_PATHSPECS": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    # A monitor of the file system would be started, and might outlive this program.
    command = ["git", "-C", str(root), "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=_PATIENCE, check=False
        )
    except FileNotFoundError:
        raise GitError("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise GitError(f"git did not answer for {_PATIENCE:.0f} seconds") from None
    except (OSError, ValueError) as error:
        raise GitError(f"git cannot be run: {error}") from error
    if done.returncode not in statuses:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise GitError(said[0] if said else f"git ended with status {done.returncode}")
    return done.stdout


def _batches(names: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for name in names:
        if batch and size + len(name) > _MAX_ARGUMENTS:
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += len(name) + 3
    if batch:
        yield batch
