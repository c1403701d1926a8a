"""Evaluations of what a script never prepares: what that gives in half would stay half, which NumPy refuses.

A model that is prepared gives float32. A part of it, called by itself, does not: a product of what it gave with another
tensor would stop outside of the region, and an exponential would overflow there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.model_homes.homes import Homes
from amp_rules.roles.program import Program
from amp_rules.roles.sites import calling
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.torch.models import COPIES


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


def without_parts_alone(program: Program, training: list[StatementRun], runs: list[StatementRun]) -> list[StatementRun]:
    """The regions but for those that evaluate nothing but parts of the models that are prepared."""
    roots = Homes(program).roots()
    starts = {run.first for run in training}
    return [run for run in runs if run.first in starts or not _runs_parts_alone(program, roots, run)]


def _runs_parts_alone(program: Program, roots: list[Value], run: StatementRun) -> bool:
    calls = [node for item in run.statements() for node in walk(item) if isinstance(node, ast.Call)]
    located = [(call, where[1]) for call in calls if (where := program.locate(call)) is not None]
    called = {value for call, scope in located for value in program.called_models(call, scope)}
    trained = {value for value in called if program.is_trained(value)}
    return bool(trained) and not any(_is_one_of(value, roots) for value in trained)


def without_made_alike(program: Program, training: list[StatementRun], runs: list[StatementRun]) -> list[StatementRun]:
    """The regions but for those that may evaluate a model made like one that is prepared, which nobody prepares itself.

    A teacher of the same class is one, and the network that takes the best weights at the end.
    """
    roots = Homes(program).roots()
    starts = {run.first for run in training}
    return [run for run in runs if run.first in starts or not any(_runs_made_alike(program, roots, run))]


def _runs_made_alike(program: Program, roots: list[Value], run: StatementRun) -> Iterator[bool]:
    for item in run.statements():
        for node in walk(item):
            located = program.locate(node) if isinstance(node, ast.Call) else None
            if located is not None and isinstance(node, ast.Call):
                called = program.called_models(node, located[1])
                yield any(is_made_alike(program, value, roots) for value in called)


def is_made_alike(program: Program, value: Value, roots: list[Value]) -> bool:
    """Whether a model is one of its own, made as one that is prepared; a copy of that is prepared as well."""
    if value in roots or value.kind not in ("instance", "object") or not isinstance(value.site, ast.Call):
        return False
    if not any(root.kind == value.kind and root.ref == value.ref for root in roots):
        return False
    located = program.locate(value.site)
    if located is None or program.is_trained(value):
        return False
    return not program.callee_names(value.site, located[1]) & COPIES


def _is_one_of(value: Value, roots: list[Value]) -> bool:
    """Whether a model is prepared, or an object of a class of which one is."""
    return value in roots or (
        value.kind == "instance" and any(root.kind == "instance" and root.ref is value.ref for root in roots)
    )


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
