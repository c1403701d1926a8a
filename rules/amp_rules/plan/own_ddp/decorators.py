"""Decorators of the project that let one process alone into the functions that they are given."""

from __future__ import annotations

import ast
from collections.abc import Callable

from amp_rules.checks.common.rank_paths import RankPaths, Reach
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

_ALONE = (Reach.ONE, Reach.EACH_NODE)


class Decorators:
    """Answers for one program.

    Args:
        program: the program.
        paths: gives what tests say of the process, of each file.
    """

    def __init__(self, program: Program, paths: Callable[[Module], RankPaths]) -> None:
        self._program = program
        self._paths = paths
        self._known: dict[ast.AST, bool] = {}

    def let_one_in(self, info: FunctionFacts) -> bool:
        """Whether a decorator of a function calls it under tests for one process alone."""
        found = self._known.get(info.node)
        if found is None:
            found = self._known[info.node] = any(map(self._calls_on_one, self._decorators_of(info)))
        return found

    def _decorators_of(self, info: FunctionFacts) -> list[FunctionFacts]:
        """The functions of the project that decorate a function, where each stands for one alone."""
        located = [self._program.locate(item) for item in info.decorator_list]
        found = []
        for item, place in zip(info.decorator_list, located, strict=True):
            values = self._program.flow.values(item, place[1]) if place is not None else frozenset()
            functions = [value.ref for value in values if value.kind == "function"]
            if len(functions) == len(values) == 1 and isinstance(functions[0], FunctionFacts):
                found.append(functions[0])
        return found

    def _calls_on_one(self, decorator: FunctionFacts) -> bool:
        """Whether all calls of what a decorator is given stand under such a test: there is one, at least."""
        given = decorator.parameters[0] if decorator.parameters else None
        calls = [
            node
            for node in walk(decorator.node)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == given
        ]
        module = self._module_of(decorator)
        if module is None or not calls:
            return False
        paths = self._paths(module)
        return all(
            paths.decides(call) in _ALONE and blocks.body_of(module, call) is not decorator.node for call in calls
        )

    def _module_of(self, decorator: FunctionFacts) -> Module | None:
        modules = self._program.flow.modules
        return next((module for module in modules if decorator.node in module.parents), None)
