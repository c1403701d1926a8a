"""Functions that go through a model part by part: what they make or exchange is a part, not the model."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.source.scopes import FunctionNode


class PartByPart:
    """Questions about the functions that call themselves for the parts of a model."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[ast.AST, bool] = {}

    def is_run(self, body: ast.AST) -> bool:
        """Whether a function calls itself, or is called by nothing but functions that do.

        One that trains is none: it starts again.
        """
        known = self._known.get(body)
        if known is None:
            self._known[body] = False  # for callers that come round
            known = self._known[body] = isinstance(body, FunctionNode) and self._decide(body)
        return known

    def _decide(self, body: ast.AST) -> bool:
        nodes = self._program.nodes_of(body)
        if any(map(self._program.runs_backward, nodes)):
            return False
        if body in self._program.called_from(nodes):
            return True
        info = self._program.function_of(body)
        callers = self._program.flow.callers(info) if info is not None else []
        return bool(callers) and all(self.is_run(caller.scope.node) for caller in callers)
