"""Regions in a notebook: a block cannot reach from one cell into the next, so each cell gets its own."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from itertools import groupby

from amp_rules.roles.program import Program
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.source import blocks
from amp_rules.source.syntax import own_name

_GIVES_NOTHING = frozenset({"append", "extend", "insert", "add", "update", "print"})
"""Calls that have no value to show."""


def within_cells(program: Program, runs: Iterable[StatementRun]) -> list[StatementRun]:
    """Return the runs, those over several cells in one part a cell.

    Autocast and the suspension of it keep nothing from one region to the next, so the parts do what the whole did. A
    part begins and ends with a statement that computes; a cell between that only prints or draws gets none, and the
    expression whose value a cell shows stays outside.
    """
    found: list[StatementRun] = []
    for run in runs:
        if run.module.cell_of(run.first) == run.module.cell_of(run.last):
            found.append(run)
        else:
            found.extend(_parts(program, run))
    return [shown for run in found if (shown := _without_display(run)) is not None]


def _without_display(run: StatementRun) -> StatementRun | None:
    """The run without the expression that ends a cell: the notebook shows its value only where it stands by itself."""
    module = run.module
    if not module.cells or not isinstance(run.last, ast.Expr) or run.last not in module.tree.body:
        return run
    if isinstance(run.last.value, ast.Call) and own_name(run.last.value.func) in _GIVES_NOTHING:
        return run
    cell = module.cell_of(run.last)
    if [item for item in module.tree.body if module.cell_of(item) == cell][-1] is not run.last:
        return run
    statements = run.statements()
    return StatementRun(module, run.first, statements[-2]) if len(statements) > 1 else None


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
