"""Scripts for Apex that share a trainer with one that is migrated, and are not migrated themselves.

What a script does not start, the runtime does not do: a trainer that scaled the loss by ``amp.scale_loss`` scales it by
``amp.scaler`` now, which waits for ``amp.init``. A script that goes on to call Apex's ``amp.initialize`` and then runs
this trainer would train without a loss scale, so it is named. So is one whose helper kept Apex's loss scale in
checkpoints, and keeps that of the runtime now.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from amp_rules.folder.import_lines import ImportGraph
from amp_rules.folder.shared_modules import is_migrated
from amp_rules.plan import notes
from amp_rules.plan.report import Note, Report
from amp_rules.source.files import Files
from amp_rules.source.mentions import Mentions
from amp_rules.source.project import project_root
from amp_rules.source.resolver import names_of
from amp_rules.source.text import SourceError

_SCALES = frozenset({"AMP402", "AMP410"})
"""The rewrites after which another engine than Apex's scales a loss."""
_FUNCTIONS = "AMP405"
"""The rewrite after which a helper saves and restores another engine's loss scale."""
_STATES = frozenset({"apex.amp.state_dict", "apex.amp.load_state_dict"})
_STARTS = frozenset({"apex.amp.initialize"})


def with_other_starts(reports: Sequence[Report]) -> list[Report]:
    """The reports, with a note on each shared module that scripts which start Apex themselves run, too."""
    searched: dict[Path, Mentions] = {}
    reached = {file for report in reports if is_migrated(report) and report.reach for file in report.reach.files}
    told: set[Path] = set()
    found = []
    for report in reports:
        if not is_migrated(report):
            found.append(report)
            continue
        others = [edit for edit in report.edits if edit.path != report.entry]
        scaling = {edit.path for edit in others if edit.code in _SCALES}
        keeping = {edit.path for edit in others if edit.code == _FUNCTIONS and _calls(edit.path, _STATES)}
        more = []
        for path in sorted((scaling | keeping) - told):
            told.add(path)
            root = project_root(path)
            starting = [file for file in _users(path, root, searched) if file not in reached and _calls(file, _STARTS)]
            if starting:
                own = [item.entry for item in reports if is_migrated(item) and item.reach and path in item.reach.files]
                more.append(_note(path, own, starting, root, scales=path in scaling))
        found.append(replace(report, notes=notes.in_order([*report.notes, *more])) if more else report)
    return found


def _note(module: Path, migrated: Sequence[Path], starting: Sequence[Path], root: Path, *, scales: bool) -> Note:
    names = [_shown(file, root) for file in starting]
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    starts, runs, left = ("starts", "runs", "it is") if len(names) == 1 else ("start", "run", "they are")
    command = " ".join(["amp-migrate", *(_shown(file, root) for file in migrated), *names])
    loses = "train without a loss scale" if scales else "neither save nor restore Apex's loss scale"
    text = (
        f"{listed} {starts} Apex and {runs} this file too, and left as {left} would {loses} now; "
        f"migrate them together: `{command}`"
    )
    return Note(module, None, notes.APEX_ELSEWHERE.code, notes.APEX_ELSEWHERE.name, text)


def _shown(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name


def _users(module: Path, root: Path, searched: dict[Path, Mentions]) -> list[Path]:
    """The files with an import that leads to a module, by way of others too."""
    mentions = searched.setdefault(root, Mentions(module))
    found: set[Path] = set()
    pending = [module]
    while pending:
        path = pending.pop()
        stem = path.parent.name if path.stem == "__init__" else path.stem
        graph = ImportGraph([file for file in mentions.of(stem) if file != module and file not in found], Files())
        users = [file for file, imported in graph.imported.items() if path in imported]
        found.update(users)
        pending += users
    return sorted(found)


def _calls(file: Path, functions: frozenset[str]) -> bool:
    """Whether a file, as it was, calls one of these functions of Apex."""
    try:
        text = file.read_bytes()
        if not any(name.rpartition(".")[2].encode() in text for name in functions):
            return False
        module = Files().module(file)
    except (OSError, SourceError):
        return False
    names = names_of(module)
    return any(isinstance(node, ast.Call) and names.dotted(node.func) in functions for node in module.nodes)
