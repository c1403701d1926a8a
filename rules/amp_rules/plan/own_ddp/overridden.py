"""Methods that the class of several processes overrides, to let the first process alone run what they did."""

from __future__ import annotations

import ast
from collections.abc import Callable

from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module


class Overridden:
    """Answers about one program.

    Args:
        program: the program.
        tells_first: whether a test within a function lets one process alone to a place in it.
    """

    def __init__(self, program: Program, tells_first: Callable[[Module, ast.AST], bool]) -> None:
        self._program = program
        self._tells_first = tells_first
        self._known: dict[FunctionFacts, frozenset[FunctionFacts]] = {}

    def is_for_one(self, info: FunctionFacts, call: ast.Call) -> bool:
        """Whether a call runs a method for an object of one process: that of several runs the override there.

        ``class Ranks(Trainer): def save(self): if self.rank == 0: super().save()``, and ``self.save()`` in ``Trainer``.
        """
        if info not in self._known:
            self._known[info] = frozenset(self._overrides(info))
        return bool(self._known[info] & self._program.flow.callees(call))

    def _overrides(self, info: FunctionFacts) -> list[FunctionFacts]:
        owner = self._program.flow.class_of(info)
        classes = [item for item in owner.derived() if item is not owner] if owner is not None else []
        methods = [item.facts.methods[info.name] for item in classes if info.name in item.facts.methods]
        return [method for method in methods if self._leaves_to_first(method, info)]

    def _leaves_to_first(self, method: FunctionFacts, info: FunctionFacts) -> bool:
        """Whether all that a method calls of what it overrides stands under a test for the first process."""
        calls = [
            item
            for item in blocks.walk_body(method.node)
            if isinstance(item, ast.Call) and info in self._program.flow.callees(item)
        ]
        return bool(calls) and all(self._tells_first(method.module.module, item) for item in calls)
