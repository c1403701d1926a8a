"""Loops above which the processes wait for a file once, where they would wait in each of their rounds."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

Ways = Mapping[ast.AST, Sequence[Site]]
"""The statements that lead to a call, by the bodies that they stand in."""

_FAR = 8
"""Functions above a wait through which it is moved to the loop that calls them."""


class WaitsAboveLoops:
    """Moves waits out of loops in which nothing has changed or looked at the file before."""

    def __init__(self, program: Program, not_by_all: Collection[ast.AST]) -> None:
        """Take the program.

        Args:
            program: the program.
            not_by_all: functions that some process does not call.
        """
        self._program = program
        self._not_by_all = not_by_all

    def place(self, module: Module, statement: ast.stmt, others: Sequence[Ways]) -> tuple[Module, ast.stmt]:
        """The outermost place of a wait after which no other round of a loop can ask for one again.

        Args:
            module: the file.
            statement: the statement above which the processes would wait.
            others: what they wait for, each by all statements that lead to it: it stays above the wait.
        """
        best = current = (module, statement)
        for _ in range(_FAR):
            module, statement = current
            loop = self._loop(module, statement, others)
            if loop is not None:
                best = current = (module, loop)
            body = blocks.body_of(module, statement)
            callers = self._callers(body) if not any(other.get(body) for other in others) else []
            loops = {self._loop(site.module, site.statement, others) for site in callers}
            if len(loops) != 1:
                return best
            (outer,) = loops
            if outer is not None:
                best = current = (callers[0].module, outer)
            elif len(callers) == 1:
                current = (callers[0].module, callers[0].statement)
            else:
                return best
        return best

    def _loop(self, module: Module, statement: ast.stmt, others: Sequence[Ways]) -> ast.stmt | None:
        """The outermost loop around a statement in which the processes come to nothing that they wait for."""
        found = None
        for parent in blocks.enclosing(module, statement):
            inside = set(walk(parent))
            if any(site.statement in inside for other in others for sites in other.values() for site in sites):
                break
            if isinstance(parent, blocks.LOOPS):
                found = parent
        return found

    def _callers(self, body: ast.AST) -> list[Site]:
        """Where a function is called, if all processes come there and its calls run it at once."""
        info = self._program.function_of(body)
        if (
            info is None
            or isinstance(body, ast.Lambda)
            or any(isinstance(node, _LATER) for node in blocks.walk_own(body))
        ):
            return []
        found = [calling(caller) for caller in self._program.flow.callers(info)]
        return found if not any(site.body in self._not_by_all for site in found) else []


_LATER = (ast.Yield, ast.YieldFrom)
