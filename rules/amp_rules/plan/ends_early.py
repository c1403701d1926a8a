"""Lines that end a script under no condition, above its training: what is migrated below them never runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.statements import is_main_guard
from amp_rules.plan.notes import NOT_REACHED, note
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.torch.failures import ENDS_PROCESS


def notes(program: Program) -> Iterator[Note]:
    """Yield one for the first such line of each body."""
    told: set[ast.AST] = set()
    for site in program.calls_to(ENDS_PROCESS):
        module, statement = site.module, site.statement
        if site.body in told or not isinstance(statement, ast.Expr) or statement.value is not site.node:
            continue
        around = blocks.enclosing(module, statement)
        if not all(isinstance(item, ast.If) and is_main_guard(item) for item in around):
            continue
        where = blocks.place(module, statement)
        above, below = where.suite[: where.index], where.suite[where.index + 1 :]
        if any(map(program.runs_backward, below)) and not any(map(program.runs_backward, above)):
            told.add(site.body)
            text = (
                f"`{module.text(statement)}` ends the script here, under no condition: the training below is migrated"
            )
            yield note(NOT_REACHED, module, statement, f"{text}, and nothing runs it before this line is taken out")
