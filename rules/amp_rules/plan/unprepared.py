"""Evaluations of models that a script never prepares: what they give in half would stay half, which NumPy refuses."""

from __future__ import annotations

import ast

from amp_rules.plan.model_variables import Home
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.roles.steps import Program, calling
from amp_rules.source import blocks


def without_unprepared(
    program: Program, homes: list[Home], training: list[StatementRun], runs: list[StatementRun]
) -> list[StatementRun]:
    """The regions but for those that evaluate where no path from the script's start has prepared a model.

    A trainer that prepares its model in ``train`` evaluates a plain one in the script that only calls ``evaluate``.
    """
    if not homes:
        return runs
    paths = _Paths(program, {home.body for home in homes})
    starts = {run.first for run in training}
    return [run for run in runs if run.first in starts or paths.lead_past(blocks.body_of(run.module, run.first))]


class _Paths:
    """The calls that lead to a function."""

    def __init__(self, program: Program, preparing: set[ast.AST]) -> None:
        self._program = program
        self._preparing = preparing

    def lead_past(self, body: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> bool:
        """Whether all that calls a function, up to the script itself, prepares a model or calls what does."""
        if body in seen or body in self._preparing or not self._runs(body).isdisjoint(self._preparing):
            return True
        info = self._program.function_of(body)
        if info is None:
            return not isinstance(body, ast.Module)
        callers = [calling(item) for item in self._program.flow.callers(info)]
        return all(self.lead_past(item.body, seen | {body}) for item in callers)

    def _runs(self, body: ast.AST) -> set[ast.AST]:
        return self._program.called_from(self._program.nodes_of(body))
