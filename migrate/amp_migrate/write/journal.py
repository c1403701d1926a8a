"""What a run changed, kept so that ``amp-migrate --undo`` can put it back.

Each project has a folder of journals: ``amp-migrate`` in its git folder, or, outside git, one under
``$XDG_STATE_HOME/amp-migrate`` (``~/.local/state``, on Windows ``%LOCALAPPDATA%``). A journal is one file for each run
over a project. It is on the disk before the first file of the project is touched, and the end of its name says how far
the run came: ``.writing.json``, ``.json`` when all is done, ``.undoing.json``.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from amp_migrate.git import git_folder, git_roots
from amp_migrate.problems import UserError
from amp_migrate.write.lock import locked
from amp_migrate.write.replacing import sync_folders

State = Literal["writing", "done", "undoing"]

KEPT_RUNS = 10
_KEPT_BYTES = 64_000_000
_VERSION = 1
_OWNER = "project"
_NAME = re.compile(r"(\d{6,})(?:\.(writing|undoing))?\.json")


@dataclass(frozen=True)
class SavedFile:
    """One file before and after a run.

    Attributes:
        path: the file, absolute.
        original: what it held before.
        after: the SHA-256 of what it holds since.
        mode: its permissions.
        temporary: the name, in the same folder, under which the new text was prepared.
    """

    path: Path
    original: bytes
    after: str
    mode: int
    temporary: str


@dataclass(frozen=True)
class SavedCopy:
    """A copy of the runtime beside a script.

    Attributes:
        path: the copy, absolute.
        made: whether this run made it; else it was there before and is only relied on.
        files: the SHA-256 of each of its files, by relative path.
        temporary: the name, in the same folder, under which it was prepared.
        before: what its files held before, by relative path; empty where the run did not change a copy.
    """

    path: Path
    made: bool
    files: dict[str, str]
    temporary: str
    before: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """What one run changed in one project."""

    root: Path
    time: str
    tool: str
    files: tuple[SavedFile, ...]
    copies: tuple[SavedCopy, ...] = ()

    @property
    def when(self) -> str:
        """The time of the run as people read it, in their own time zone."""
        return datetime.fromisoformat(self.time).astimezone().strftime("%Y-%m-%d %H:%M:%S")

    def concerns(self, path: Path) -> bool:
        """Whether the run changed ``path`` or something below it."""
        return any(file.path.is_relative_to(path) for file in self.files)


@dataclass(frozen=True)
class Journal:
    """The file of one run: which run of its project, counted from 1, and how far it came."""

    file: Path
    number: int
    state: State

    def load(self, root: Path) -> Record:
        """Read the journal of a project that lies at ``root`` now.

        Raises:
            UserError: it cannot be read, or is damaged.
        """
        try:
            return _decoded(json.loads(self.file.read_bytes()), root)
        except OSError as error:
            raise UserError(f"{self.file}: cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
            message = f"{self.file}: this journal is damaged ({error}); delete it to go on without it"
            raise UserError(message) from error


@dataclass(frozen=True)
class JournalStore:
    """The journals of one project.

    Attributes:
        root: the project's folder.
        folder: where its journals are.
    """

    root: Path
    folder: Path
    _private: bool = field(default=False, compare=False)

    @property
    def in_git(self) -> bool:
        """Whether it is in the git folder of the project."""
        return not self._private

    def prepare(self) -> None:
        """Make the folder.

        Raises:
            OSError: it cannot be made or written.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700 if self._private else 0o777)
        if not os.access(self.folder, os.W_OK):
            raise PermissionError(13, "Permission denied", str(self.folder))
        owner = self.folder / _OWNER
        if self._private and not owner.exists():
            temporary = owner.with_name(f".{_OWNER}.{os.getpid()}")
            temporary.write_bytes(os.fsencode(self.root))
            os.replace(temporary, owner)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs over the project out: see :func:`amp_migrate.write.lock.locked`."""
        with locked(self.folder / "lock"):
            yield

    def journals(self) -> list[Journal]:
        """The runs that are known, the oldest first."""
        found = []
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder):
                if match := _NAME.fullmatch(name):
                    state: Any = match[2] or "done"
                    found.append(Journal(self.folder / name, int(match[1]), state))
        return sorted(found, key=lambda journal: journal.number)

    def begin(self, record: Record) -> Journal:
        """Write the journal of a run that is about to start, and wait until it is on the disk.

        Raises:
            OSError: it cannot be written.
        """
        number = max((journal.number for journal in self.journals()), default=0) + 1
        file = self.folder / f"{number:06}.writing.json"
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(json.dumps(_encoded(record), indent=1).encode())
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(name, file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        sync_folders({self.folder})
        return Journal(file, number, "writing")

    def mark(self, journal: Journal, state: State) -> Journal:
        """Say how far a run came."""
        ending = ".json" if state == "done" else f".{state}.json"
        file = self.folder / f"{journal.number:06}{ending}"
        os.replace(journal.file, file)
        sync_folders({self.folder})
        return Journal(file, journal.number, state)

    def drop(self, journal: Journal) -> None:
        """Forget a run."""
        journal.file.unlink(missing_ok=True)
        sync_folders({self.folder})

    def prune(self) -> None:
        """Forget the oldest runs where there are too many, or too much of them; never the last one."""
        done = [journal for journal in self.journals() if journal.state == "done"]
        size = 0
        for count, journal in enumerate(reversed(done), start=1):
            with contextlib.suppress(OSError):
                size += journal.file.stat().st_size
                if count > 1 and (count > KEPT_RUNS or size > _KEPT_BYTES):
                    journal.file.unlink()


def stores_for_writing(root: Path) -> list[JournalStore]:
    """Return where the journal of a project may be kept, the better place first."""
    found = []
    folder = git_folder(root)
    if folder is not None:
        found.append(JournalStore(root, folder / "amp-migrate"))
    with contextlib.suppress(OSError):
        found.append(JournalStore(root, _state_folder() / _key(root), _private=True))
    return found


def stores_about(paths: Sequence[Path]) -> list[JournalStore]:
    """Return the places of journals about ``paths``: of the projects they lie in, and of those outside git below."""
    resolved = [Path(os.path.realpath(path)) for path in paths]
    found: dict[Path, JournalStore] = {}
    for root in sorted({root for path in resolved for root in git_roots(path / "any")}):
        folder = git_folder(root)
        if folder is not None:
            store = JournalStore(root, folder / "amp-migrate")
            found[store.folder] = store
    for store in _state_stores():
        if any(path.is_relative_to(store.root) or store.root.is_relative_to(path) for path in resolved):
            found[store.folder] = store
    return [store for store in found.values() if store.folder.is_dir()]


def _state_stores() -> list[JournalStore]:
    """Return the places of journals outside git."""
    found = []
    with contextlib.suppress(OSError):
        for folder in sorted(_state_folder().iterdir()):
            with contextlib.suppress(OSError):
                root = Path(os.fsdecode((folder / _OWNER).read_bytes()))
                found.append(JournalStore(root, folder, _private=True))
    return found


def runs_about(path: Path) -> list[tuple[JournalStore, Journal, Record]]:
    """Return the runs over the projects that ``path`` lies in, the last one first.

    Raises:
        UserError: a journal cannot be read.
    """
    found = []
    for store in stores_about([path]):
        latest = ""
        for journal in store.journals():
            record = journal.load(store.root)
            # In one project the number counts: the clock may have been set back.
            latest = max(latest, record.time)
            found.append((latest, store, journal, record))
    found.sort(key=lambda item: (item[0], item[2].number), reverse=True)
    return [(store, journal, record) for _, store, journal, record in found]


def new_record(root: Path, files: Sequence[SavedFile], copies: Sequence[SavedCopy]) -> Record:
    """Return the record of a run that starts now."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        tool = version("amp-migrate")
    except PackageNotFoundError:
        tool = "unknown"
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return Record(root, now, tool, tuple(files), tuple(copies))


def digest(data: bytes) -> str:
    """Return the SHA-256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below ``folder``, without what Python compiled."""
    return {name: digest(path.read_bytes()) for name, path in files_below(folder)}


def files_below(folder: Path) -> Iterable[tuple[str, Path]]:
    """Yield the relative names and paths of the files below ``folder``, without what Python compiled."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".pyo"):
            yield path.relative_to(folder).as_posix(), path


def _state_folder() -> Path:
    """Return the folder that holds the journals of all projects outside git.

    Raises:
        OSError: nobody knows where the user's files are.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.environ.get("LOCALAPPDATA", "") if os.name == "nt" else ""
    if not base:
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    if not os.path.isabs(base):
        raise OSError("the home folder is not known; set XDG_STATE_HOME")
    return Path(base) / "amp-migrate" / "projects"


def _key(root: Path) -> str:
    name = re.sub(r"[^\w.-]", "_", root.name, flags=re.ASCII)[:40]
    return f"{name}-{digest(os.fsencode(root))[:16]}"


def _encoded(record: Record) -> dict[str, Any]:
    def name(path: Path) -> str:
        # Relative, so that a project with its git folder may be moved.
        return path.relative_to(record.root).as_posix() if path.is_relative_to(record.root) else str(path)

    return {
        "version": _VERSION,
        "tool": record.tool,
        "time": record.time,
        "root": str(record.root),
        "files": [
            {
                "path": name(file.path),
                "before": digest(file.original),
                "after": file.after,
                "mode": file.mode,
                "temporary": file.temporary,
                "original": base64.b64encode(zlib.compress(file.original)).decode(),
            }
            for file in record.files
        ],
        "copies": [
            {
                "path": name(copy.path),
                "made": copy.made,
                "files": copy.files,
                "temporary": copy.temporary,
                "before": {file: base64.b64encode(zlib.compress(data)).decode() for file, data in copy.before.items()},
            }
            for copy in record.copies
        ],
    }


def _decoded(document: dict[str, Any], root: Path) -> Record:
    if document["version"] != _VERSION:
        raise ValueError(f"it is of version {document['version']}, written by amp-migrate {document.get('tool')}")
    files = []
    for item in document["files"]:
        original = zlib.decompress(base64.b64decode(item["original"], validate=True))
        if digest(original) != item["before"]:
            raise ValueError(f"the original of {item['path']} is not whole")
        temporary = _plain(item["temporary"])
        files.append(SavedFile(root / item["path"], original, str(item["after"]), int(item["mode"]), temporary))
    copies = [
        SavedCopy(
            root / item["path"],
            bool(item["made"]),
            dict(item["files"]),
            _plain(item["temporary"]),
            {
                _inside(file): zlib.decompress(base64.b64decode(data, validate=True))
                for file, data in item.get("before", {}).items()  # journals of earlier versions have none
            },
        )
        for item in document["copies"]
    ]
    return Record(root, str(document["time"]), str(document["tool"]), tuple(files), tuple(copies))


def _inside(name: str) -> str:
    """Return the name of a file in a copy, which leads out of it nowhere."""
    if name.startswith("/") or ".." in name.split("/") or os.path.isabs(name):
        raise ValueError(f"{name!r} is not the name of a file in a copy")
    return name


def _plain(name: str) -> str:
    """Return the name of a file that will be deleted, which leads to no other folder."""
    if not name.startswith(".") or name in (".", "..") or "/" in name or os.sep in name:
        raise ValueError(f"{name!r} is not the name of a temporary file")
    return name
