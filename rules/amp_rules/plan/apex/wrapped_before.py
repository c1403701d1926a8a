"""A model that a script wraps for several processes above ``amp.initialize``, which Apex and the runtime refuse."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.starts import Start
from amp_rules.plan.step_conditions import never_both
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.torch import apex as api
from amp_rules.torch.wrappers import DATA_PARALLEL, DISTRIBUTED_DATA_PARALLEL


def above_wrapper(file: ApexFile, start: Start, is_alone: bool) -> Start:
    """The start, above the statement that wraps its model if one does.

    Raises:
        NotUnderstood: the model is wrapped above, and it is not certain that it can be prepared above that.
    """
    wrappers = list(_wrappers(file, start))
    if not wrappers:
        return start
    above = _place(file, start, wrappers) if is_alone and start.beside is None else None
    if above is None:
        raise file.not_understood(
            wrappers[0],
            "the model is wrapped before `initialize`, which Apex refuses, and the runtime too (`RuntimeError`): "
            "wrap it below `initialize`",
        )
    return replace(start, above=above)


def _wrappers(file: ApexFile, start: Start) -> Iterator[ast.Assign]:
    names = file.names
    scope = names.scope_of(start.statement)
    parts = walk(start.arguments["models"])
    given = {blocks.path_of(item) for item in parts if isinstance(item, (ast.Name, ast.Attribute))}
    for node in file.module.parents:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if node.lineno >= start.statement.lineno or names.scope_of(node) is not scope:
            continue
        if not {blocks.path_of(item) for item in node.targets} & (given - {None}):
            continue
        if names.targets(node.value.func) & (api.WRAPPERS | DISTRIBUTED_DATA_PARALLEL):
            if not never_both(file.module, node, start.statement):
                yield node


def _place(file: ApexFile, start: Start, wrappers: list[ast.Assign]) -> ast.stmt | None:
    """The statement beside that of the start which wraps the model; None where more than the wrapper stands between."""
    models = start.arguments["models"]
    path = blocks.path_of(models) if isinstance(models, (ast.Name, ast.Attribute)) else None
    if path is None or len(start.prepared) != 1 or not start.prepared[0].startswith(f"{path} = "):
        return None
    suite = blocks.place(file.module, start.place).suite
    first = next((item for item in suite if wrappers[0] in walk(item)), None)
    if first is None:
        return None
    between = suite[suite.index(first) : suite.index(start.place)]
    inside = [node for item in between for node in walk(item) if isinstance(node, ast.stmt)]
    if any(isinstance(node, (*blocks.LOOPS, ast.With, ast.Try, ast.Return)) for node in inside):
        return None
    written = [node for node in inside if path in _writes_itself(node)]
    if not all(_wraps(file, node, path) for node in written) or not set(wrappers) <= set(written):
        return None
    changed = {name for item in between for name in blocks.writes(item)} - {path}
    return None if blocks.touches(start.reads(), changed) else first


def _writes_itself(node: ast.stmt) -> set[str]:
    return blocks.writes(node) if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) else set()


def _wraps(file: ApexFile, node: ast.stmt, path: str) -> bool:
    """``model = Wrapper(model, ...)``."""
    if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.targets) == 1):
        return False
    given = node.value.args[0] if node.value.args else None
    names = file.names.targets(node.value.func)
    return (
        bool(names & (api.WRAPPERS | DISTRIBUTED_DATA_PARALLEL | DATA_PARALLEL))
        and isinstance(given, (ast.Name, ast.Attribute))
        and blocks.path_of(given) == path == blocks.path_of(node.targets[0])
    )
