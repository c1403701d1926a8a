"""Scripts for Apex that share a trainer with one that is migrated, and are not migrated themselves.

What a script does not start, the runtime does not do: a trainer that scaled the loss by ``amp.scale_loss`` scales it by
``amp.scaler`` now, which waits for ``amp.init``. A script that goes on to call Apex's ``amp.initialize`` and then runs
this trainer would train without a loss scale, so it is named. So is one whose helper kept Apex's loss scale in
checkpoints, and keeps that of the runtime now, and one that steps itself where a shared trainer starts and scales. And
so is one that calls a function which started Apex: at O1 Apex patched PyTorch for whatever ran after that; and one
that runs functions under Apex's ``float_function``, which are under the runtime's now.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from amp_rules.folder.import_lines import ImportGraph
from amp_rules.folder.shared_modules import is_migrated
from amp_rules.plan import notes
from amp_rules.plan.listing import listed
from amp_rules.plan.report import Note, Report
from amp_rules.source import blocks
from amp_rules.source.files import Files
from amp_rules.source.mentions import Mentions
from amp_rules.source.modules import Module
from amp_rules.source.project import project_root
from amp_rules.source.resolver import names_of
from amp_rules.source.syntax import last_name, walk
from amp_rules.source.text import SourceError

_SCALES = frozenset({"AMP402", "AMP410"})
"""The rewrites after which another engine than Apex's scales a loss."""
_SCALED, _INITIALIZED = "AMP402", "AMP404"
_FUNCTIONS = "AMP405"
"""The rewrite after which a helper saves and restores another engine's loss scale, or has another one cast."""
_LOSES_SCALE = "train without a loss scale"
_LOSES_STATE = "neither save nor restore Apex's loss scale"
_LOSES_CASTS = "run its functions under `float_function` on half tensors at O1"
_STEPS_SCALED = "step with gradients that are still scaled"
_STATES = frozenset({"apex.amp.state_dict", "apex.amp.load_state_dict"})
_CASTS = frozenset({"apex.amp.float_function"})
_SCALERS = frozenset({"apex.amp.scale_loss", "apex.amp.init", "apex.fp16_utils.FP16_Optimizer"})
_STARTS = frozenset({"apex.amp.initialize"})


def with_other_starts(reports: Sequence[Report]) -> list[Report]:
    """The reports, with a note on each shared module that scripts which start Apex themselves run, too."""
    searched: dict[Path, Mentions] = {}
    reached = {file for report in reports if is_migrated(report) and report.reach for file in report.reach.files}
    told: set[Path] = set()
    patched: set[Path] = set()
    found = []
    for report in reports:
        if not is_migrated(report):
            found.append(report)
            continue
        others = [edit for edit in report.edits if edit.path != report.entry]
        scaling = {edit.path for edit in others if edit.code in _SCALES and _calls(edit.path, _SCALERS)}
        keeping = {edit.path for edit in others if edit.code == _FUNCTIONS and _calls(edit.path, _STATES)}
        casting = {edit.path for edit in others if edit.code == _FUNCTIONS and _reads(edit.path, _CASTS)}
        started = {edit.path for edit in others if edit.code == _INITIALIZED}
        scaled = {edit.path for edit in others if edit.code == _SCALED}
        more = []
        named: set[Path] = set()
        # Files of layers are many: who starts Apex is told once.
        for path in sorted((scaling | keeping) - told) + sorted(casting - scaling - keeping - told):
            told.add(path)
            root = project_root(path)
            users = [file for file in _users(path, root, searched) if file not in reached]
            starting = [file for file in users if _calls(file, _STARTS)]
            if path not in scaling | keeping:
                starting = [file for file in starting if file not in named]
            if starting:
                own = [item.entry for item in reports if is_migrated(item) and item.reach and path in item.reach.files]
                loses = _LOSES_SCALE if path in scaling else _LOSES_STATE if path in keeping else _LOSES_CASTS
                more.append(_note(path, own, starting, root, loses))
            leading = [_users(item, root, searched) for item in started if path in scaled]
            stepping = [
                file
                for file in users
                if file not in starting and any(file in item for item in leading) and _steps(file)
            ]
            named.update(starting, stepping)
            if stepping:
                own = [item.entry for item in reports if is_migrated(item) and item.reach and path in item.reach.files]
                more.append(_note(path, own, stepping, root, _STEPS_SCALED))
        for path in sorted(started - patched):
            patched.add(path)
            more += _unpatched(path, project_root(path), reached | named, searched)
        found.append(replace(report, notes=notes.in_order([*report.notes, *more])) if more else report)
    return found


def _note(module: Path, migrated: Sequence[Path], starting: Sequence[Path], root: Path, loses: str) -> Note:
    names = [_shown(file, root) for file in starting]
    starts, runs, left = ("starts", "runs", "it is") if len(names) == 1 else ("start", "run", "they are")
    does = f"{starts} Apex"
    if loses is _STEPS_SCALED:
        does = f"step{'s' if len(names) == 1 else ''} without the scaler"
    command = " ".join(["amp-migrate", *(_shown(file, root) for file in migrated), *names])
    text = (
        f"{listed(names)} {does} and {runs} this file too, and left as {left} would {loses} now; "
        f"migrate them together: `{command}`"
    )
    return Note(module, None, notes.APEX_ELSEWHERE.code, notes.APEX_ELSEWHERE.name, text)


def _unpatched(path: Path, root: Path, reached: Collection[Path], searched: dict[Path, Mentions]) -> Iterator[Note]:
    """A note on scripts that call what started Apex, and thereby had PyTorch's functions patched for all they run."""
    starting = _starting(path)
    users = [file for file in _users(path, root, searched) if file not in reached] if starting else []
    calling = {file: _called(file, starting) for file in users}
    names = [_shown(file, root) for file, called in calling.items() if called]
    if names:
        functions = ", ".join(f"`{name}`" for name in sorted(frozenset().union(*calling.values())))
        call = "calls" if len(names) == 1 else "call"
        text = (
            f"{listed(names)} {call} {functions} too: where that gave O1, Apex patched PyTorch for all that ran after "
            "it, and now what stands outside of `with amp.autocast():` is computed in FP32"
        )
        yield Note(path, None, notes.APEX_ELSEWHERE.code, notes.APEX_ELSEWHERE.name, text)


def _starting(path: Path) -> frozenset[str]:
    """The functions of a file, as it was, that start Apex."""
    module = _module(path)
    if module is None:
        return frozenset()
    names = names_of(module)
    return frozenset(
        node.name
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef)
        if any(isinstance(item, ast.Call) and names.dotted(item.func) in _STARTS for item in walk(node))
    )


def _called(file: Path, functions: frozenset[str]) -> frozenset[str]:
    """Which of some functions a script calls: a file that runs by itself."""
    module = _module(file)
    if module is None or "__main__" not in module.source.text:
        return frozenset()
    return functions & {last_name(node.func) for node in module.nodes if isinstance(node, ast.Call)}


def _module(path: Path) -> Module | None:
    try:
        return Files().module(path)
    except (OSError, SourceError):
        return None


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


def _reads(file: Path, functions: frozenset[str]) -> bool:
    """Whether a file, as it was, has one of these functions of Apex: as a decorator, most often."""
    module = _module(file)
    if module is None:
        return False
    names = names_of(module)
    return any(isinstance(node, (ast.Name, ast.Attribute)) and names.dotted(node) in functions for node in module.nodes)


def _steps(file: Path) -> bool:
    """Whether a file steps an optimizer: something that it clears the gradients of, too."""
    try:
        text = file.read_bytes()
        if b".step(" not in text or b".zero_grad(" not in text:
            return False
        module = Files().module(file)
    except (OSError, SourceError):
        return False
    called = [node.func for node in module.nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    cleared = {blocks.path_of(item.value) for item in called if item.attr == "zero_grad"} - {None}
    return any(item.attr == "step" and blocks.path_of(item.value) in cleared for item in called)
