"""Regions in a notebook: a block cannot reach from one cell into the next, so each cell gets its own."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from itertools import groupby

from amp_rules.roles.statement_runs import StatementRun
from amp_rules.roles.steps import Program
from amp_rules.source import blocks


def within_cells(program: Program, runs: Iterable[StatementRun]) -> list[StatementRun]:
    """Return the runs, those over several cells in one part a cell.

    Autocast and the suspension of it keep nothing from one region to the next, so the parts do what the whole did. A
    part begins and ends with a statement that computes; a cell between that only prints or draws gets none.
    """
    found: list[StatementRun] = []
    for run in runs:
        if run.module.cell_of(run.first) == run.module.cell_of(run.last):
            found.append(run)
        else:
            found.extend(_parts(program, run))
    return found


def _parts(program: Program, run: StatementRun) -> Iterable[StatementRun]:
    tainted: set[str] = set()
    computing: set[ast.stmt] = set()
    for statement in run.statements():
        derived = isinstance(statement, (ast.Assign, ast.AugAssign)) and blocks.touches(
            blocks.reads(statement), tainted
        )
        if derived or program.runs_model(statement):
            computing.add(statement)
            tainted |= blocks.writes(statement)
    for _, group in groupby(run.statements(), run.module.cell_of):
        part = _trimmed(list(group), computing)
        if part:
            yield StatementRun(run.module, part[0], part[-1])


def _trimmed(statements: Sequence[ast.stmt], computing: set[ast.stmt]) -> Sequence[ast.stmt]:
    indices = [index for index, statement in enumerate(statements) if statement in computing]
    return statements[indices[0] : indices[-1] + 1] if indices else []
