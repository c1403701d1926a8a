"""Steps that a look at the gradients decides over: ``if torch.isfinite(norm): optimizer.step()``.

Gradients that overflowed are no reason to step, and the scale must come down all the same: it is updated behind the
condition, and before the round is left.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from amp_rules.plan.unscale_places import Unscale
from amp_rules.source import blocks
from amp_rules.source.modules import Module


def behind_conditions(unscales: Sequence[Unscale], module: Module, step: ast.stmt) -> ast.stmt:
    """The statement of a round behind which the scale is updated: the step's, or the condition for it."""
    found = step
    for parent in blocks.enclosing(module, step):
        if isinstance(parent, blocks.LOOPS):
            break
        if isinstance(parent, ast.If) and any(_decides(item, module, parent) for item in unscales):
            found = parent
    return found


def left_early(unscales: Sequence[Unscale], module: Module, step: ast.stmt) -> Iterator[ast.stmt]:
    """The statements that leave a round without its step, because of its gradients."""
    suite, last = blocks.place(module, step).suite, blocks.place(module, step).index
    for item in unscales:
        if item.module is not module or item.statement not in suite[:last]:
            continue
        for statement in suite[suite.index(item.statement) : last]:
            if isinstance(statement, ast.If) and _decides(item, module, statement):
                yield from _leaving(statement)


def _decides(item: Unscale, module: Module, branch: ast.If) -> bool:
    """Whether a condition asks for gradients that were unscaled above it, or for what was computed of them there."""
    where = blocks.place(module, branch)
    if item.module is not module or item.statement not in where.suite[: where.index + 1]:
        return False
    if item.statement is branch:
        return True
    first = where.suite.index(item.statement)
    names = {name for statement in where.suite[first : where.index] for name in blocks.writes(statement)}
    return any(names & blocks.reads(test) for test in _tests(branch))


def _tests(branch: ast.If) -> Iterator[ast.expr]:
    """The conditions of an ``if`` and of each ``elif`` below it."""
    yield branch.test
    for item in branch.orelse if len(branch.orelse) == 1 else ():
        if isinstance(item, ast.If):
            yield from _tests(item)


def _leaving(branch: ast.If) -> Iterator[ast.stmt]:
    pending: list[ast.stmt] = [branch]
    while pending:
        statement = pending.pop()
        if isinstance(statement, (ast.Continue, ast.Return)):
            yield statement
        elif isinstance(statement, (ast.If, ast.With, ast.Try)):
            pending += [item for suite in blocks.suites(statement) for item in suite]
