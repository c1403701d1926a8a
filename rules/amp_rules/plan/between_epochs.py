"""Places that are reached once an epoch: between one loop over batches and the next.

What is decided there rests on numbers of whole epochs, and the main process may decide for all: as in most scripts
that people bring to several processes by hand, where the main process says whether training stops.
"""

from __future__ import annotations

import ast

from amp_rules.plan.definitions import Definitions
from amp_rules.ranks.analysis import Ranks
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk

_MAX_CALLERS = 4
"""Functions between a test and the loop over epochs; trainers have one or two."""
_SIZES = frozenset({"numel", "shape", "size"})
_MAX_VARIABLES = 4
"""Variables that a test is looked through for counts."""


class BetweenEpochs:
    """Questions about places of one program, given what differs between ranks."""

    def __init__(self, program: Program, ranks: Ranks, definitions: Definitions) -> None:
        self._program = program
        self._ranks = ranks
        self._definitions = definitions

    def has(self, site: Site, depth: int = 0) -> bool:
        """Whether the loop around a place, in its function or in the callers, takes its steps in loops further in."""
        loop = blocks.loop_around(site.module, site.node)
        if loop is not None:
            return any(map(self._program.runs_backward, loop.body)) and not self._steps_in_turns_of(loop)
        info = self._program.function_of(site.body)
        callers = self._program.flow.callers(info) if info is not None and depth < _MAX_CALLERS else []
        return bool(callers) and all(self.has(calling(caller), depth + 1) for caller in callers)

    def _steps_in_turns_of(self, loop: ast.For | ast.AsyncFor | ast.While) -> bool:
        """Whether each turn of a loop takes a step: in its body, or in the generator that it goes through."""
        head = loop.test if isinstance(loop, ast.While) else loop.iter
        return self._program.runs_backward(head) or self._steps_at_once(loop.body, 0)

    def _steps_at_once(self, body: list[ast.stmt], depth: int) -> bool:
        """Whether statements run a backward pass, themselves or by functions, and not in a loop of their own."""
        for statement in body:
            if not self._program.runs_backward(statement) or isinstance(statement, blocks.LOOPS):
                continue
            inner = [child for suite in blocks.suites(statement) for child in suite]
            if inner:
                if self._steps_at_once(inner, depth):
                    return True
                continue
            calls = [node for node in blocks.walk_own(statement) if isinstance(node, ast.Call)]
            callees = [info for call in calls if self._program.runs_backward(call) for info in self._callees(call)]
            if not callees or depth >= _MAX_CALLERS:
                return True
            if any(isinstance(info, ast.Lambda) or self._steps_at_once(info.body, depth + 1) for info in callees):
                return True
        return False

    def _callees(self, call: ast.Call) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda]:
        return [info.node for info in self._program.flow.callees(call)]

    def trains(self, site: Site) -> bool:
        """Whether a test says itself whether steps are taken, with what a rank may have collected for them."""
        statement = site.statement
        return isinstance(statement, ast.If) and any(
            map(self._program.runs_backward, (*statement.body, *statement.orelse))
        )

    def counts(self, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
        """Whether a test asks how much a rank has: one that has none must not do what another one can."""
        for part in walk(node):
            if not isinstance(part, ast.expr) or not self._ranks.origins(part):
                continue
            if isinstance(part, ast.Call) and "builtins.len" in self._program.callee_names(part, scope):
                return True
            if isinstance(part, ast.Attribute) and part.attr in _SIZES:
                return True
            if isinstance(part, (ast.Name, ast.Attribute)) and depth < _MAX_VARIABLES:
                if any(self.counts(item.value, item.scope, depth + 1) for item in self._definitions.of(part, scope)):
                    return True
        return False
