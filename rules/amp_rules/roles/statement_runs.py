"""Consecutive statements, which one block can hold."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk


@dataclass(frozen=True)
class StatementRun:
    """Consecutive statements of one suite."""

    module: Module
    first: ast.stmt
    last: ast.stmt

    def statements(self) -> list[ast.stmt]:
        """The statements from first to last."""
        where = blocks.place(self.module, self.first)
        found = []
        for statement in where.suite[where.index :]:
            found.append(statement)
            if statement is self.last:
                break
        return found


def outermost(runs: list[StatementRun]) -> list[StatementRun]:
    """Drop runs inside of others."""
    covered = {id(node) for run in runs for item in run.statements() for node in walk(item) if node is not item}
    return [run for run in runs if id(run.first) not in covered]


def merged(runs: list[StatementRun]) -> list[StatementRun]:
    """Join runs of one suite that overlap or follow each other."""
    by_suite: dict[int, list[tuple[int, int, StatementRun]]] = {}
    for run in runs:
        where = blocks.place(run.module, run.first)
        end = blocks.place(run.module, run.last).index
        by_suite.setdefault(id(where.suite[0]), []).append((where.index, end, run))
    found: list[StatementRun] = []
    for entries in by_suite.values():
        entries.sort(key=lambda entry: entry[:2])
        _, end, current = entries[0]
        for next_start, next_end, run in entries[1:]:
            if next_start > end + 1:
                found.append(current)
                end, current = next_end, run
            elif next_end > end:
                end, current = next_end, StatementRun(current.module, current.first, run.last)
        found.append(current)
    return found
