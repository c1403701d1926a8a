"""Regions around a loop that is more than model and loss: they go into its body, behind what prepares the data there.

A loss that is added up over the objects of a batch is computed by a loop, and rays, crops and files of each object are
made in it too. Autocast has no business with them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.plan.geometry import operations_in
from amp_rules.roles.program import Program
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.casts import CUDA_LOWER


def into_loops(program: Program, runs: Iterable[StatementRun]) -> list[StatementRun]:
    """The regions, those around one loop alone within it, where it does much besides."""
    return [_inside(program, run) for run in runs]


def _inside(program: Program, run: StatementRun) -> StatementRun:
    loop = run.first
    if run.last is not loop or not isinstance(loop, ast.For) or loop.orelse or program.runs_model(loop.iter):
        return run
    inner = _computing(program, run.module, loop)
    if inner is None:
        return run
    before = loop.body[: loop.body.index(inner.first)]
    much = sum(map(_size, before)) > sum(map(_size, inner.statements()))
    return _inside(program, inner) if much or any(operations_in(program, item) & CUDA_LOWER for item in before) else run


def _computing(program: Program, module: Module, loop: ast.For) -> StatementRun | None:
    """The statements of a loop's body from the first to the last that runs a model, or reads what one gave."""
    made: set[str] = set()
    while True:
        found = [item for item in loop.body if program.runs_model(item) or blocks.touches(blocks.reads(item), made)]
        grown = made.union(*map(blocks.writes, found))
        if grown == made:
            return StatementRun(module, found[0], found[-1]) if found else None
        made = grown


def _size(statement: ast.stmt) -> int:
    return sum(isinstance(node, ast.stmt) for node in walk(statement))
