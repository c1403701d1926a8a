"""What stands around the computation of a region: what prepares its data is outside of it, and branches share one.

Augmentations and spectra of the data need no half precision, and lose digits in it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.flow.values import Value
from amp_rules.plan.geometry import operations_in
from amp_rules.plan.model_parts import has_weights
from amp_rules.roles.program import Program
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.torch.casts import CUDA_LOWER
from amp_rules.torch.functions import OTHER_SHAPE
from amp_rules.torch.old_torch import LOSS_FUNCTIONS, LOSS_MODULES

_OF_TENSORS = OTHER_SHAPE | {"to", "cuda", "cpu", "float", "detach", "clone", "size", "zero_grad"}
"""Methods of tensors and optimizers: what else is called by an attribute may be a model."""
_LOSSES = frozenset(f"torch.nn.{name}" for name in LOSS_MODULES)


def without_preparation(program: Program, runs: Iterable[StatementRun]) -> list[StatementRun]:
    """The regions without the modules of the project, of no weights, that prepare data at their beginnings.

    Where a function that is called below computes with the model, nothing but preparation may be left of one.
    """
    after = [_after_preparation(program, run) for run in runs]
    return [run for run in after if not _only_prepares(program, run)]


def _only_prepares(program: Program, run: StatementRun) -> bool:
    """Whether a region, the end of one that begins with preparation maybe, comes before what runs the model."""
    if run.first is not run.last or not isinstance(run.first, ast.Assign):
        return False
    modules = _modules_run(program, run.first)
    if not modules and not _is_understood(program, run.first):
        return False
    if any(map(program.is_trained, modules)) or any(has_weights(program, value) for value in modules):
        return False
    where = blocks.place(run.module, run.first)
    if any(map(program.runs_forward, where.suite[: where.index + 1])):
        return False
    return any(map(program.runs_forward, where.suite[where.index + 1 :]))


def _after_preparation(program: Program, run: StatementRun) -> StatementRun:
    statements = run.statements()
    prepares = False
    for statement in statements[:-1]:
        modules = _modules_run(program, statement)
        if any(map(program.is_trained, modules)) or program.runs_forward(statement):
            break
        if _gives_loss(program, statement, modules):
            break
        if modules and not any(has_weights(program, value) for value in modules):
            prepares = True
        elif modules or not _is_understood(program, statement):
            break
        statements = statements[1:]
    return StatementRun(run.module, statements[0], run.last) if prepares else run


def _gives_loss(program: Program, statement: ast.stmt, modules: set[Value]) -> bool:
    """Whether a statement computes a loss: nobody asks for one of data alone."""
    is_made = any(value.kind == "object" and value.name in _LOSSES for value in modules)
    return is_made or not operations_in(program, statement).isdisjoint(LOSS_FUNCTIONS)


def _is_understood(program: Program, statement: ast.stmt) -> bool:
    """Whether all that a statement calls is known, and nothing of it multiplies matrices."""
    if not isinstance(statement, (ast.Assign, ast.Expr)):
        return False
    for call in (node for node in walk(statement) if isinstance(node, ast.Call)):
        located = program.locate(call)
        is_method = isinstance(call.func, ast.Attribute) and call.func.attr in _OF_TENSORS
        if located is None or not (is_method or program.flow.callees(call) or program.callee_names(call, located[1])):
            return False
    return operations_in(program, statement).isdisjoint(CUDA_LOWER)


def _modules_run(program: Program, statement: ast.stmt) -> set[Value]:
    """The models and layers that a statement calls, by itself or in the functions that it calls."""
    found: set[Value] = set()
    calls = [node for node in walk(statement) if isinstance(node, ast.Call)]
    for body in [None, *program.called_from(calls)]:
        nodes = calls if body is None else [node for node in program.nodes_of(body) if isinstance(node, ast.Call)]
        for call in nodes:
            located = program.locate(call)
            if located is not None:
                found |= program.called_models(call, located[1])
    return found


def around_branches(runs: Iterable[StatementRun], apart: Iterable[StatementRun]) -> list[StatementRun]:
    """The regions, one around an ``if`` where each of its branches was one as a whole; not those ``apart``."""
    kept = list(apart)
    found = [run for run in runs if run not in kept]
    while True:
        whole = {run.first for run in found if _is_whole_suite(run)}
        joined = next((item for run in found if (item := _branches(run, whole, found)) is not None), None)
        if joined is None:
            return [run for run in runs if run in kept] + found
        inside = {node for statement in joined.statements() for node in walk(statement)}
        found = [joined, *(run for run in found if run.first not in inside)]


def _is_whole_suite(run: StatementRun) -> bool:
    suite = blocks.place(run.module, run.first).suite
    return suite[0] is run.first and suite[-1] is run.last


def _branches(run: StatementRun, whole: set[ast.stmt], runs: list[StatementRun]) -> StatementRun | None:
    """The outermost ``if`` of a chain whose branches are all regions, or one whose only branch is, beside another."""
    branch = run.module.parents.get(run.first)
    while isinstance(branch, ast.If) and isinstance(outer := run.module.parents.get(branch), ast.If):
        if outer.orelse != [branch]:
            break
        branch = outer
    if not isinstance(branch, ast.If):
        return None
    if branch.orelse:
        return StatementRun(run.module, branch, branch) if _all_begin(branch, whole) else None
    where = blocks.place(run.module, branch)
    following = where.suite[where.index + 1] if where.index + 1 < len(where.suite) else None
    beside = next((item for item in runs if item.first is following), None)
    return StatementRun(run.module, branch, beside.last) if beside is not None and branch.body[0] in whole else None


def _all_begin(branch: ast.If, whole: set[ast.stmt]) -> bool:
    if not branch.orelse or branch.body[0] not in whole:
        return False
    other = branch.orelse[0]
    return other in whole or (isinstance(other, ast.If) and len(branch.orelse) == 1 and _all_begin(other, whole))
