"""Samples that a step saves between its forward pass and its loss: they stay outside of the region.

``if step % 500 == 0: save_image(output, path)``: nothing of it is computed for the loss, so two regions stand around
the others, and the lines that save are left as they are.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from amp_rules.roles.file_effects import file_effects
from amp_rules.roles.program import Program
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.source import blocks


def without_saving(program: Program, runs: list[StatementRun]) -> list[StatementRun]:
    """Divide runs at conditions that write files, and compute nothing that the rest of the run reads."""
    asked = [item for run in runs for item in run.statements()[1:-1] if isinstance(item, ast.If)]
    if not asked:
        return runs
    writing = {effect.call for effect in file_effects(program)}
    saves = program.closure(lambda node: node in writing)
    found: list[StatementRun] = []
    for run in runs:
        rest = run.statements()
        piece: list[ast.stmt] = []
        while rest:
            item = rest.pop(0)
            if piece and rest and isinstance(item, ast.If) and saves(item) and _is_apart(program, item, rest):
                found.append(StatementRun(run.module, piece[0], piece[-1]))
                piece = []
            else:
                piece.append(item)
        found.append(StatementRun(run.module, piece[0], piece[-1]) if piece[0] is not run.first else run)
    return found


def _is_apart(program: Program, item: ast.If, rest: Sequence[ast.stmt]) -> bool:
    """Whether a condition runs no model, and writes no variable that the statements below read."""
    if program.runs_model(item) or program.runs_forward(item) or program.runs_backward(item):
        return False
    read = {path for statement in rest for path in blocks.reads(statement)}
    return not blocks.touches(blocks.writes(item), read)
