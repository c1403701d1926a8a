"""Functions that hydra runs in a folder named by the time: each process would have one of its own.

``@hydra.main`` moves the process there before the function begins, unless it is told ``version_base`` from 1.2 on or
``hydra.job.chdir`` is false. What the main process writes under a relative path, the others look for in theirs.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from amp_rules.plan.file_order import FileOrder
from amp_rules.plan.main_path import is_text
from amp_rules.roles.file_effects import FileEffect
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.program import Program
from amp_rules.roles.unpacked_here import is_relative
from amp_rules.source.hydra_settings import Setting, compose
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.search_path import path_of
from amp_rules.torch.containers import TAKES_CONFIGURATION
from amp_rules.torch.file_access import ENTERERS

_MOVED_UNTIL = ("1.0", "1.1")
_TIME = "${now"


def entered_by_each(
    program: Program, paths: Paths, order: FileOrder, effects: list[FileEffect]
) -> Iterator[tuple[Module, ast.stmt]]:
    """Yield the first statements of such functions, where the others read what the main process writes there.

    Args:
        program: the program.
        paths: which files its expressions name.
        order: what reads the files that the main process writes.
        effects: what changes files.
    """
    order.barriers()
    read = [effect for effect in effects if effect.call in order.places and not effect.removes]
    names = (text for effect in read for path in effect.paths for text in paths.of(path, effect.scope))
    if not any(map(is_relative, names)) or program.calls_to(ENTERERS):
        return
    module = program.entry
    for node, scope in program.bodies:
        if scope.module is not module or not isinstance(node, ast.FunctionDef) or "os" in scope.bound:
            continue
        if any(_moves(program, item, scope.top) for item in node.decorator_list):
            first = next((item for item in node.body if not is_text(item)), None)
            if first is not None:
                yield module, first


def _moves(program: Program, decorator: ast.expr, scope: Scope) -> bool:
    """Whether a decorator is hydra's, and has the process run in a folder named by the time."""
    if not isinstance(decorator, ast.Call) or TAKES_CONFIGURATION not in program.names(decorator.func, scope):
        return False
    given = {item.arg: item.value for item in decorator.keywords}
    given |= dict(zip(("config_path", "config_name"), decorator.args, strict=False))
    settings = _settings(program, given, scope)
    folder = settings.found("hydra.run.dir") if settings is not None else None
    if folder is not None and not any(_TIME in text for text in folder.texts):
        return False
    job = settings.found("hydra.job") if settings is not None else None
    if job is not None and "chdir" in job.members:
        return "chdir" in job.flags
    return "version_base" not in given or literal(given["version_base"]) in _MOVED_UNTIL


def _settings(program: Program, given: dict[str | None, ast.expr], scope: Scope) -> Setting | None:
    """What the configuration holds; None where it is not known."""
    folder, name = (
        path_of(scope.module, given[key]) if key in given else None for key in ("config_path", "config_name")
    )
    if name is None:
        return None
    where = scope.module.path.parent / (folder or Path())
    return compose(program.project, Path(os.path.normpath(where)), str(name))
