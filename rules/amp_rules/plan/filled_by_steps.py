"""Lists that a loop fills every so many steps alone, and what fails below it where they stay empty."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.torch.data import FAILS_WITHOUT_ITEMS


def failing(program: Program, loop: BatchLoop, branch: ast.If) -> ast.Call | None:
    """The first call below a loop that fails if a branch of it was never taken: ``np.vstack(rows)``."""
    filled = {path for item in branch.body for path in blocks.writes(item)}
    names = {path for path in filled if _is_begun_anew(loop, path) and not _is_filled_elsewhere(loop, branch, path)}
    for call in _below(loop) if names else ():
        given = call.args[0] if call.args else None
        if isinstance(given, (ast.Name, ast.Attribute)) and blocks.path_of(given) in names:
            if program.callee_names(call, loop.scope) & FAILS_WITHOUT_ITEMS and not _is_asked(loop, call, given):
                return call
    return None


def _is_begun_anew(loop: BatchLoop, path: str) -> bool:
    """Whether a list is empty where the loop begins."""
    above = [item for suite, index in blocks.suites_around(loop.module, loop.loop) for item in suite[:index]]
    made = [node for item in above for node in blocks.walk_own(item) if path in blocks.writes_itself(node)]
    return len(made) == 1 and isinstance(made[0], ast.Assign) and ast.unparse(made[0].value) in ("[]", "list()")


def _is_filled_elsewhere(loop: BatchLoop, branch: ast.If, path: str) -> bool:
    inside = {node for item in branch.body for node in walk(item)}
    return any(
        path in blocks.writes(node)
        for node in loop.inner
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)) and node not in inside
    )


def _below(loop: BatchLoop) -> Iterator[ast.Call]:
    for suite, index in blocks.suites_around(loop.module, loop.loop):
        for item in suite[index + 1 :]:
            yield from (node for node in blocks.walk_own(item) if isinstance(node, ast.Call))


def _is_asked(loop: BatchLoop, call: ast.Call, given: ast.expr) -> bool:
    """Whether something around a call asks for the list first: ``if rows:``."""
    path = blocks.path_of(given) or ""
    for parent in loop.module.ancestors(call):
        if isinstance(parent, (ast.If, ast.IfExp)) and path in blocks.reads(parent.test):
            return True
        if isinstance(parent, ast.Try):
            return True
        if parent is loop.body:
            break
    return any(item.arg == "default" for item in call.keywords)
