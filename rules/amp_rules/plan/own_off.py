"""Regions where the script itself turns autocast off: a new one within would turn it on again."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.roles.program import Program
from amp_rules.roles.sites import calling
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.torch.mixed_precision import is_off


def without_off(program: Program, runs: Iterable[StatementRun]) -> list[StatementRun]:
    """The regions but for those that run where the script has turned autocast off."""
    off = _Off(program)
    return [run for run in runs if off.holds(run.module, run.first) is False]


def reasons(program: Program, runs: list[StatementRun]) -> Iterator[Declined]:
    """Yield training steps that run without autocast by the script's own wish: all of them, or in some calls alone."""
    off = _Off(program)
    found = [(run, off.holds(run.module, run.first)) for run in runs]
    for run, holds in found:
        if holds is None:
            yield declining.decline(
                declining.ALREADY_MIXED,
                run.module,
                run.first,
                f"`{run.module.text(run.first)}` runs both where the script turns autocast off and where it does not",
                "take the script's own `autocast(enabled=False)` out, or call two functions",
            )
    if found and all(holds for _, holds in found):
        run = found[0][0]
        yield declining.decline(
            declining.ALREADY_MIXED,
            run.module,
            run.first,
            f"the script turns autocast off around `{run.module.text(run.first)}`, which is all that it trains with",
            "remove the script's own `autocast(enabled=False)`, then migrate again",
        )


class _Off:
    """The places where the script turns autocast off."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def holds(self, module: Module, node: ast.stmt) -> bool | None:
        """Whether a place runs without autocast; None where some callers turn it off and others do not."""
        found: set[bool] = set()
        pending, seen = [(module, node)], set[ast.AST]()
        while pending:
            module, node = pending.pop()
            body = blocks.body_of(module, node)
            if self._is_around(module, node) or self._is_decorated(body):
                found.add(True)
                continue
            info = self._program.function_of(body)
            callers = [calling(item) for item in self._program.flow.callers(info)] if info is not None else []
            if not callers:
                found.add(False)
            elif body not in seen:
                seen.add(body)
                pending += [(item.module, item.statement) for item in callers]
        return found.pop() if len(found) == 1 else None if found else False

    def _is_around(self, module: Module, node: ast.stmt) -> bool:
        located = self._program.locate(node)
        entered = [
            item.context_expr
            for block in blocks.enclosing(module, node)
            if isinstance(block, (ast.With, ast.AsyncWith))
            for item in block.items
        ]
        return located is not None and any(
            is_off(name, item)
            for item in entered
            if isinstance(item, ast.Call)
            for name in self._program.callee_names(item, located[1])
        )

    def _is_decorated(self, body: ast.AST) -> bool:
        info = self._program.function_of(body)
        return info is not None and any(
            isinstance(node, ast.Call) and is_off(name, node) for name, node in info.decorators
        )
