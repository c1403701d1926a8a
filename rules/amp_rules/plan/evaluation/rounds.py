"""What a round of a loop writes, and which of its values are a process's own while the loop runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.evaluation.assignments import loaded, names_in
from amp_rules.plan.evaluation.making import made_in, root_of
from amp_rules.plan.training_loops import added_to, variable
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.torch import evaluating
from amp_rules.torch.replication import CLOCKS, PROCESS


class Round:
    """One loop, as far as its variables go.

    Args:
        program: the program.
        loop: the loop.
        counters: variables of its head that count the rounds.
    """

    def __init__(self, program: Program, loop: Site, counters: set[str]) -> None:
        assert isinstance(loop.node, (ast.For, ast.AsyncFor))
        self._program = program
        self._site = loop
        self._loop = loop.node
        self._inner = [node for item in loop.node.body for node in blocks.walk_own(item)]
        self._written = self._names_written()
        self._fresh = made_in(self._inner, names_in(loop.node.target) - counters)
        self._clocks: set[str] = set()
        self._private = set(counters)
        for node in self._inner:
            self._private.update(self._accumulates(node))
            self._private.update(self._grown(node))

    def _names_written(self) -> set[str]:
        of_comprehensions = {
            part for node in self._inner if isinstance(node, ast.comprehension) for part in ast.walk(node.target)
        }
        return names_in(self._loop.target) | {
            node.id
            for node in self._inner
            if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del))
            if node not in of_comprehensions
        }

    def _accumulates(self, node: ast.AST) -> Iterator[str]:
        """Yield what a statement adds to, where nothing in the round gives it a value first."""
        plain = {
            name
            for item in self._inner
            if isinstance(item, ast.Assign) and not list(added_to(item))
            for target in item.targets
            for name in names_in(target)
        }
        for path in added_to(node):
            if path.partition("[")[0] not in plain | names_in(self._loop.target):
                yield path.partition("[")[0]

    def _grown(self, node: ast.AST) -> Iterator[str]:
        """Yield what is appended to, where it is not made in the round."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            path = variable(node.func.value)
            if (
                node.func.attr in evaluating.GROWING_METHODS
                and path is not None
                and root_of(node.func.value) not in self._fresh
            ):
                yield path

    def _rests_on_own(self, node: ast.AST) -> bool:
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                names = self._program.callee_names(part, self._site.scope)
                if names & CLOCKS or names & PROCESS:
                    return True
            if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load):
                path = variable(part)
                if path in self._private or path in self._clocks:
                    return True
        return any(self._is_clock_variable(name.id) for name in loaded(node))

    def _is_time(self, value: ast.expr) -> bool:
        """Whether all that is a process's own in an expression is the time."""
        return not any(name.id in self._private and not self._is_clock_variable(name.id) for name in loaded(value))

    def _is_clock_variable(self, name: str) -> bool:
        """Whether the loop assigns a variable nothing but what the clock says: ``end = time.time()``."""
        values = [
            node.value
            for node in self._inner
            if isinstance(node, ast.Assign) and any(name in names_in(target) for target in node.targets)
        ]
        return bool(values) and all(
            any(
                isinstance(part, ast.Call) and self._program.callee_names(part, self._site.scope) & CLOCKS
                for part in ast.walk(value)
            )
            for value in values
        )

    def _text(self, node: ast.AST) -> str:
        return self._site.module.text(node)
