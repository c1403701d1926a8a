"""Writing over one project: all of its files or none, with a journal from which ``--undo`` puts them back."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from amp_rules.source.digest import digest_of

from amp_migrate.git import git_root
from amp_migrate.problems import Problem, UserError, shown
from amp_migrate.projects import project_folder
from amp_migrate.vendoring.copies import Copy, contents, put
from amp_migrate.write.journal import (
    Journal,
    JournalStore,
    Record,
    SavedCopy,
    SavedFile,
    digest,
    digests,
    new_record,
    stores_about,
    stores_for_writing,
)
from amp_migrate.write.lock import LockedError
from amp_migrate.write.replacing import CHANGED_SINCE, Replacement, changed_since, replace_all

_NOT_KEPT = "nothing was written, because it could not be undone"


def write_project(
    replacements: Sequence[Replacement], copies: Sequence[Copy], inputs: Mapping[Path, str] | None = None
) -> Problem | None:
    """Replace the files of one project, and write its copies of the runtime; all of it or nothing.

    Every replacement says what it expects, and ``inputs`` are the hashes of other files that the changes rest on: all
    are read again once no other run can write. Returns what prevented it.
    """
    paths = [*(item.path for item in replacements), *(copy.path.parent / "_" for copy in copies)]
    root = min((project_folder(path) for path in paths), key=lambda folder: (len(folder.parts), folder))
    try:
        with _opened(root) as store, _others_held(paths, root):
            settle(store)
            return _stale(replacements, copies, inputs or {}) or _write(store, replacements, copies)
    except UserError as error:
        return Problem(root, str(error))
    except OSError as error:
        return Problem(Path(error.filename or root), f"{error.strerror or error}; nothing was written")


def _stale(replacements: Sequence[Replacement], copies: Sequence[Copy], inputs: Mapping[Path, str]) -> Problem | None:
    """Say which file changed since the changes were planned: by another run, or in an editor.

    That comes before the journal: a journal tells of files of this run alone.
    """
    for item in replacements:
        with contextlib.suppress(FileNotFoundError):  # `replace_all` says that it vanished
            if problem := changed_since(item):
                return problem
    for path, known in inputs.items():
        try:
            same = digest_of(path.read_bytes()) == known
        except FileNotFoundError:
            same = False
        if not same:
            return Problem(path, CHANGED_SINCE)
    return next((problem for copy in copies if (problem := _changed_copy(copy))), None)


def _changed_copy(copy: Copy) -> Problem | None:
    if copy.changes and (contents(copy.path) if copy.path.exists() else None) != copy.before:
        return Problem(copy.path, CHANGED_SINCE)
    return None


def copy_beside(copies: Sequence[Copy]) -> Problem | None:
    """Write copies of the runtime, all or none."""
    done: list[Copy] = []
    for copy in copies:
        if not copy.changes:
            continue
        if problem := put(copy.path, copy.after):
            for other in done:
                if other.before is None:
                    shutil.rmtree(other.path, ignore_errors=True)
                else:
                    put(other.path, other.before)
            return problem
        done.append(copy)
    return None


def notice_interrupted(paths: Sequence[Path], *, writing: bool) -> list[str]:
    """Look for runs over the projects of ``paths`` that were cut off, and return what is to be said about them.

    With ``writing``, those that left nothing half done are settled.

    Raises:
        UserError: with ``writing``, a project is half written.
    """
    notes: list[str] = []
    for store in stores_about(paths):
        if all(journal.state == "done" for journal in store.journals()):
            continue
        if not writing:
            notes.append(f"{_half_written(store.root)} (unless it is being written at this moment)")
            continue
        with held(store):
            notes += settle(store)
    return notes


def settle(store: JournalStore) -> list[str]:
    """Deal with a run that was cut off, unless it left the project half written.

    Raises:
        UserError: it did.
    """
    notes = []
    for journal in store.journals():
        if journal.state == "done":
            continue
        record = journal.load(store.root)
        standing = {condition(file).name for file in record.files}
        if "after" not in standing:
            # Either nothing was replaced yet, or all of it is put back already.
            remove_copies(store, journal, record)
            clean(record)
            store.drop(journal)
            notes.append(f"a run over {shown(store.root)} was cut off and left no changes; its journal was removed")
        elif "before" not in standing:
            clean(record)
            store.mark(journal, "done")
        else:
            raise UserError(_half_written(store.root))
    return notes


@dataclass(frozen=True)
class Condition:
    """How a file stands to a run: ``before`` or ``after`` it, ``other`` for edited since, or ``gone``."""

    name: str
    data: bytes | None


def condition(file: SavedFile) -> Condition:
    """Compare a file with what a run made of it.

    Raises:
        UserError: it cannot be read.
    """
    try:
        data = file.path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return Condition("gone", None)
    except OSError as error:
        raise UserError(f"{shown(file.path)}: cannot be read: {error.strerror or error}") from error
    if file.path.is_symlink():
        return Condition("other", data)
    if data == file.original:
        return Condition("before", data)
    return Condition("after" if digest(data) == file.after else "other", data)


def remove_copies(store: JournalStore, journal: Journal, record: Record) -> tuple[list[Path], list[Path]]:
    """Take back what a run did to copies of the runtime; return those taken back and those that had to stay.

    A copy that the run made goes, and one that it changed becomes what it was.
    """
    taken_back: list[Path] = []
    kept: list[Path] = []
    others = {other: other.load(store.root) for other in store.journals() if other != journal}
    for copy in record.copies:
        if not copy.made and not copy.before:
            continue
        # What came before a change is enough for the runs before it.
        needing = [run for other, run in others.items() if copy.made or other.number > journal.number]
        used = any(copy.path == its.path for run in needing for its in run.copies)
        if copy.before or copy.path.exists():
            done = _put_back(copy, used) if copy.before else _remove(copy, used)
            if done is not None:
                (taken_back if done else kept).append(copy.path)
    return taken_back, kept


def _put_back(copy: SavedCopy, used: bool) -> bool | None:
    """Give a copy back what it held before a run; ``None`` if it holds that already."""
    now = digests(copy.path) if copy.path.is_dir() else {}
    if now == {name: digest(data) for name, data in copy.before.items()}:
        return None
    # A run that was cut off may have left nothing at all.
    if used or copy.path.is_symlink() or (now and now != copy.files):
        return False
    shutil.rmtree(copy.path.with_name(copy.temporary), ignore_errors=True)
    return put(copy.path, copy.before, copy.temporary) is None


def _remove(copy: SavedCopy, used: bool) -> bool:
    if used or copy.path.is_symlink() or digests(copy.path) != copy.files:
        return False
    # First out of the way: a folder that is half deleted would be neither there nor gone.
    aside = copy.path.with_name(copy.temporary)
    shutil.rmtree(aside, ignore_errors=True)
    try:
        os.rename(copy.path, aside)
    except OSError:
        return False
    shutil.rmtree(aside, ignore_errors=True)
    return True


def clean(record: Record) -> None:
    """Remove what a run had only prepared."""
    for file in record.files:
        with contextlib.suppress(OSError):
            file.path.with_name(file.temporary).unlink(missing_ok=True)
    for copy in record.copies:
        shutil.rmtree(copy.path.with_name(copy.temporary), ignore_errors=True)


@contextlib.contextmanager
def held(store: JournalStore) -> Iterator[None]:
    """Keep other runs out.

    Raises:
        UserError: another run is writing, and does not come to an end.
    """
    try:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(store.locked())
            except OSError as error:
                raise UserError(f"{store.folder}: {error.strerror or error}") from error
            yield
    except LockedError as error:
        raise UserError(
            f"another amp-migrate is writing in {shown(store.root)} ({error}); run again when it has finished"
        ) from error


@contextlib.contextmanager
def _opened(root: Path) -> Iterator[JournalStore]:
    """Choose where the journal is kept, and keep other runs out."""
    failure = "the home folder is not known; set XDG_STATE_HOME"
    for store in stores_for_writing(root):
        try:
            store.prepare()
            break
        except OSError as error:
            failure = f"{store.folder}: {error.strerror or error}"
    else:
        raise UserError(f"no journal can be kept ({failure}); {_NOT_KEPT}")
    with held(store):
        yield store


@contextlib.contextmanager
def _others_held(paths: Sequence[Path], root: Path) -> Iterator[None]:
    """Keep runs out of the other repositories that files lie in, as submodules do: they have locks of their own."""
    with contextlib.ExitStack() as stack:
        for other in sorted({found for path in paths if (found := git_root(path))} - {root}):
            for store in stores_for_writing(other)[:1]:
                try:
                    store.prepare()
                except OSError:
                    continue  # where no journal can be, no run writes one
                stack.enter_context(held(store))
        yield


def _write(store: JournalStore, replacements: Sequence[Replacement], copies: Sequence[Copy]) -> Problem | None:
    token = secrets.token_hex(4)
    # The journal names what is prepared, so that it can be cleared away after a crash.
    items = [
        replace(item, temporary=f".{item.path.name[:60]}.{token}{number}.tmp")
        for number, item in enumerate(replacements)
    ]
    try:
        files = [
            SavedFile(item.path, item.expected or b"", digest(item.data), item.path.stat().st_mode & 0o7777, name)
            for item in items
            if (name := item.temporary)
        ]
        saved = [
            SavedCopy(
                copy.path,
                copy.before is None,
                {name: digest(data) for name, data in copy.after.items()},
                f".{copy.path.name}.{token}{number}.tmp",
                dict(copy.before or {}) if copy.changes else {},
            )
            for number, copy in enumerate(copies)
        ]
    except OSError as error:
        return Problem(Path(error.filename or store.root), f"cannot be read: {error.strerror or error}")
    record = new_record(store.root, files, saved)
    try:
        journal = store.begin(record)
    except OSError as error:
        return Problem(store.folder, f"the journal cannot be written: {error.strerror or error}; {_NOT_KEPT}")
    stuck: list[Path] = []
    try:
        problem = _copy(record, copies) or (replace_all(items, stuck) if items else None)
    except BaseException:
        _abandon(store, journal, record, stuck)
        raise
    if problem is not None:
        return _abandon(store, journal, record, stuck) or problem
    with contextlib.suppress(OSError):
        # The next run sees for itself that everything is written.
        store.mark(journal, "done")
        store.prune()
    return None


def _copy(record: Record, copies: Sequence[Copy]) -> Problem | None:
    for saved, copy in zip(record.copies, copies, strict=True):
        if not copy.changes:
            continue
        if problem := _changed_copy(copy) or put(copy.path, copy.after, saved.temporary):
            return problem
    return None


def _abandon(store: JournalStore, journal: Journal, record: Record, stuck: Sequence[Path]) -> Problem | None:
    """Forget a run that failed and was taken back; keep its journal where that did not succeed.

    What this run could not put back is known, and not read from the files: another may have written the same text.
    """
    with contextlib.suppress(UserError, OSError):
        if not stuck:
            remove_copies(store, journal, record)
            clean(record)
            store.drop(journal)
            return None
    return Problem(
        store.root, f"could be neither written nor put back; free some space, then `{undo_command(store.root)}`"
    )


def undo_command(root: Path) -> str:
    """Return the command that undoes the last run over a project."""
    inside = Path.cwd().is_relative_to(root)
    return "amp-migrate --undo" if inside else f"amp-migrate --undo {shlex.quote(shown(root))}"


def _half_written(root: Path) -> str:
    return f"a run over {shown(root)} was cut off while it wrote; `{undo_command(root)}` puts its files back"
