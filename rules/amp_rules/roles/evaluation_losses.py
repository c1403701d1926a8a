"""Losses of an evaluation that are given what a method of a model computed within a region: they need one, too.

Nothing makes the outputs of a method float32 again, as it does those of a prepared model, and a loss that training
computes within a region would get half tensors outside of all: ``log(p + 1e-30)`` of them is infinite.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.roles.program import Program
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.source import blocks
from amp_rules.source.syntax import walk


def losses_of_methods(
    program: Program, evaluated: Iterable[StatementRun], covered: set[ast.AST], inside: set[ast.AST]
) -> Iterator[StatementRun]:
    """Yield a run for each call of a loss module.

    Args:
        program: the program.
        evaluated: the regions of evaluations.
        covered: the nodes of all regions.
        inside: the functions that run in the regions of training.
    """
    outputs = _outputs(program, evaluated)
    for call, body, scope in program.calls() if outputs else ():
        if body not in outputs or call in covered:
            continue
        given = {path for item in [*call.args, *(word.value for word in call.keywords)] for path in blocks.reads(item)}
        if not blocks.touches(given, outputs[body]) or not isinstance(call.func, (ast.Name, ast.Attribute)):
            continue
        statement = blocks.statement_of(scope.module, call)
        if not isinstance(statement, (ast.Assign, ast.AugAssign)) or statement.value is not call:
            continue
        called = program.called_models(call, scope)
        forwards = [value.ref.find_method("forward") for value in called if value.kind == "instance"]
        if not called or len(forwards) < len(called) or any(map(program.is_trained, called)):
            continue
        if all(forward is not None and forward.node in inside for forward in forwards):
            ends = (program.runs_backward, program.runs_step, program.runs_look)
            if not any(runs(statement) for runs in ends):
                yield StatementRun(scope.module, statement, statement)


def _outputs(program: Program, evaluated: Iterable[StatementRun]) -> dict[ast.AST, set[str]]:
    """The variables that methods of models give within regions, by the function around."""
    found: dict[ast.AST, set[str]] = {}
    for statement in (item for run in evaluated for item in run.statements()):
        for call in walk(statement):
            located = program.locate(call) if isinstance(call, ast.Call) else None
            if located is None or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            body, scope = located
            if not program.called_models(call, scope) and program.forwards(call, scope):
                found.setdefault(body, set()).update(blocks.writes(statement))
    return found
