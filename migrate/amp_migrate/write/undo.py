"""``--undo``: putting back what the last run over a project changed."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from amp_migrate.problems import Problem, UserError, shown
from amp_migrate.write.journal import Journal, JournalStore, Record, runs_about
from amp_migrate.write.replacing import Replacement, replace_all
from amp_migrate.write.transaction import Condition, clean, condition, held, remove_copies


@dataclass
class Undone:
    """What was put back, or, where only that was asked, would be.

    Attributes:
        record: the run.
        interrupted: whether it was cut off while it wrote.
        restored: the files put back, and the copies of the runtime that are smaller again.
        removed: the copies of the runtime that were removed.
        notes: what else there is to be said.
        problems: why nothing was put back.
        earlier: how many earlier runs can be undone after this one.
    """

    record: Record
    interrupted: bool
    restored: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    earlier: int = 0


def undo(path: Path | None, *, overwrite: bool = False, dry: bool = False) -> Undone:
    """Put back all files of one run, or none: the last one that changed ``path`` or something below it.

    Without a path it is the last run over the project that the working directory lies in. A file that was put back
    otherwise is no obstacle. A file that was edited since prevents the whole, unless ``overwrite`` is given: then it is
    put back too, and the edited text is kept beside the journal.

    Args:
        path: a file or folder, or None.
        overwrite: put back files that were edited since.
        dry: change nothing.

    Raises:
        UserError: there is nothing to undo, or it cannot be found out.
    """
    store, journal, _ = _chosen(path)
    with held(store):
        # What was chosen may have been undone by another process meanwhile.
        chosen, journal, record = _chosen(path)
        if chosen.folder != store.folder:
            raise UserError("another amp-migrate is undoing runs at this moment; run again when it has finished")
        found = Undone(record, journal.state != "done")
        found.earlier = sum(other.number < journal.number for other in store.journals())
        states = {file.path: condition(file) for file in record.files}
        edited = [path for path, state in states.items() if state.name in ("other", "gone")]
        if found.interrupted and not any(state.name == "after" for state in states.values()):
            # The run did not come to its first file, so whatever changed since is the user's.
            edited = []
        if edited and not overwrite:
            found.problems = [Problem(path, _why(states[path], store, journal, path)) for path in edited]
            return found
        todo = [file for file in record.files if states[file.path].name == "after" or file.path in edited]
        found.restored = [file.path for file in todo]
        if dry:
            found.removed = [copy.path for copy in record.copies if copy.made and copy.path.exists()]
            found.restored += [copy.path for copy in record.copies if copy.before]
            return found
        try:
            _carry_out(store, journal, found, states)
        except OSError as error:
            name = Path(error.filename) if error.filename else store.folder
            found.problems.append(Problem(name, f"{error.strerror or error}; nothing was put back"))
        return found


def _chosen(path: Path | None) -> tuple[JournalStore, Journal, Record]:
    runs = runs_about(Path.cwd() if path is None else path)
    if path is None:
        elsewhere, runs = runs, [run for run in runs if _is_here(run)]
        if elsewhere and not runs:
            raise _other_project(elsewhere[0])
    cut_off = [run for run in runs if run[1].state != "done"]
    if cut_off:
        # As long as a project is half written, nothing else can be done with it.
        return cut_off[0]
    if path is not None:
        runs = [run for run in runs if run[2].concerns(Path(os.path.realpath(path)))]
    if not runs:
        raise UserError(
            f"nothing to undo: no run of amp-migrate is known that changed {shown(path) if path else Path.cwd()}"
        )
    return runs[0]


def _is_here(run: tuple[JournalStore, Journal, Record]) -> bool:
    """Whether a run is over the project of the working directory; of another one the user may not know.

    Outside git the project of a lone script is its folder, which may hold all the projects of the user. So a
    run over a folder above has to have changed something in the working directory.
    """
    store, _, record = run
    root, here = Path(os.path.realpath(store.root)), Path(os.path.realpath(Path.cwd()))
    return here.is_relative_to(root) and (here == root or store.in_git or record.concerns(here))


def _other_project(run: tuple[JournalStore, Journal, Record]) -> UserError:
    root, record = Path(os.path.realpath(run[0].root)), run[2]
    where = "above" if Path(os.path.realpath(Path.cwd())).is_relative_to(root) else "below"
    return UserError(
        f"nothing to undo in this project; the last run {where} this folder changed {shown(root)} "
        f"({record.when}): amp-migrate --undo {shlex.quote(shown(root))} undoes it"
    )


def _carry_out(store: JournalStore, journal: Journal, found: Undone, states: dict[Path, Condition]) -> None:
    record = found.record
    originals = {file.path: file for file in record.files}
    for path in found.restored:
        state = states[path]
        if state.name == "other" and state.data is not None:
            place = _keep(store, journal, record, path, state.data)
            found.notes.append(f"the edited text of {shown(path)} is kept as {place}")
    journal = store.mark(journal, "undoing")
    clean(record)
    items = []
    for path in found.restored:
        file = originals[path]
        path.parent.mkdir(parents=True, exist_ok=True)
        items.append(Replacement(path, file.original, states[path].data, path, file.mode, file.temporary))
    problem = replace_all(items) if items else None
    if problem is not None:
        found.restored = []
        found.problems.append(problem)
        if not found.interrupted:
            store.mark(journal, "done")
        return
    taken_back, kept = remove_copies(store, journal, record)
    found.removed = [path for path in taken_back if not path.exists()]
    found.restored += [path for path in taken_back if path.exists()]
    for path in kept:
        found.notes.append(f"{shown(path)} stays: it was changed, or another migrated script needs it")
    store.drop(journal)


def _keep(store: JournalStore, journal: Journal, record: Record, path: Path, data: bytes) -> Path:
    """Save a text that is about to be overwritten, and return where."""
    name = path.relative_to(record.root) if path.is_relative_to(record.root) else Path(path.name)
    for number in range(1000):
        place = store.folder / "edited" / f"{journal.number:06}-{number}" / name
        if not place.exists():
            break
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return place


def _why(state: Condition, store: JournalStore, journal: Journal, path: Path) -> str:
    what = "was removed" if state.data is None else "was edited"
    for later in store.journals():
        if later.number > journal.number and later.load(store.root).concerns(path):
            return "was changed by a later run, too; nothing was put back, undo that one first"
    kept = "" if state.data is None else ", and keeps the edited text elsewhere"
    return f"{what} since; nothing was put back: --allow-dirty puts it back all the same{kept}"
