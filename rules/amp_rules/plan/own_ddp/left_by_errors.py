"""Collective operations in a ``try`` that one process leaves by an error of its own batch: the others wait there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Shares
from amp_rules.plan.swallowed_failures import goes_on
from amp_rules.ranks.statements import handles
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import called_name
from amp_rules.torch.distributed import BARRIERS, EXCHANGES


def left_by_errors(own: OwnDdp, shares: Shares) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the ``raise`` under a test of a process's own batch that leads past such an operation, once for a handler.

    What is not caught ends the process, and its launcher ends the others. A handler that waits for the others itself
    may be where they meet.
    """
    if not own.program.calls_to(EXCHANGES | BARRIERS):
        return
    told: set[ast.AST] = set()
    for node, body, scope in own.program.nodes():
        module = scope.module
        if not isinstance(node, ast.Raise) or node.exc is None or module not in own.modules or body in own.uncalled:
            continue
        branch = module.parents[node]
        caught = _caught(module, node, called_name(node.exc))
        if caught is None or caught in told or not isinstance(branch, ast.If):
            continue
        tried = module.parents[caught]
        assert isinstance(tried, ast.Try)
        behind = [item for item in _calls(tried.body) if item.lineno > (branch.end_lineno or branch.lineno)]
        waits = next((call for call in behind if own.waiting.at(call, module)), None)
        if waits is None or any(own.waiting.at(call, module) for call in _calls([*caught.body, *tried.finalbody])):
            continue
        if own.reach(module, waits) is not Reach.EVERY or own.is_of_first_alone(module, node):
            continue
        if shares.decides(branch.test):
            told.add(caught)
            yield (
                module,
                node,
                f"`{module.text(branch.test)}` depends on each process's own share of the data: a process that raises "
                f"here goes on below, and the others wait for it in `{module.text(waits)}`",
            )


def _caught(module: Module, node: ast.Raise, raised: str) -> ast.ExceptHandler | None:
    """The handler of the same function that goes on with what is raised; None where the error ends the process."""
    inner: ast.AST = node
    for around in blocks.enclosing(module, node):
        if isinstance(around, ast.Try) and inner in around.body:
            handler = next((item for item in around.handlers if handles(item, raised)), None)
            if handler is not None:
                return handler if goes_on(handler.body) else None
        inner = around
    return None


def _calls(suite: list[ast.stmt]) -> list[ast.Call]:
    return [part for item in suite for part in blocks.walk_own(item) if isinstance(part, ast.Call)]
