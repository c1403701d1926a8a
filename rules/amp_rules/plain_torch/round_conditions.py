"""Conditions of a training step that hold in every round or in none, and so together wherever they are asked."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import cached_property

from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode

Assumed = dict[tuple[ast.AST, str], bool]
"""For a body and a condition in it whether it holds."""

_MAX_CONDITIONS = 4
"""Conditions that are followed together; each doubles the paths. What is beyond is taken to hold or not, each time."""


class RoundConditions:
    """Finds them in the files of a program.

    Args:
        program: the program.
        modules: the files to look through.
        concerns: whether a statement is of the step.
    """

    def __init__(self, program: Program, modules: Iterable[Module], concerns: Callable[[ast.AST], bool]) -> None:
        self._program = program
        self._modules = list(modules)
        self._concerns = concerns

    def assumptions(self) -> list[Assumed]:
        """Each way in which they can hold."""
        asked: dict[tuple[ast.AST, str], int] = {}
        for module in self._modules:
            for node in module.nodes:
                if isinstance(node, ast.If) and self._program.locate(node) is not None and self._concerns(node):
                    key = (blocks.body_of(module, node), ast.unparse(node.test))
                    if key in asked or self._is_lasting(module, node.test):
                        asked[key] = asked.get(key, 0) + 1
        found: list[Assumed] = [{}]
        for key in [key for key, count in asked.items() if count > 1][:_MAX_CONDITIONS]:
            found = [{**one, key: value} for one in found for value in (True, False)]
        return found

    def _is_lasting(self, module: Module, test: ast.expr) -> bool:
        """Whether nothing changes what a condition asks, from round to round or from call to call."""
        if any(isinstance(node, ast.Call) for node in ast.walk(test)):
            return False
        body = blocks.body_of(module, test)
        bound = self._bound_in(body)
        for node in ast.walk(test):
            if isinstance(node, ast.Attribute) and node.attr in self._assigned_attributes:
                return False
            if isinstance(node, ast.Name) and node.id in bound and not isinstance(module.parents[node], ast.Attribute):
                return False
        loops = [item for item in blocks.enclosing(module, test) if isinstance(item, blocks.LOOPS)]
        read = blocks.reads(test)
        return not any(blocks.touches(blocks.writes(loop), read) for loop in loops)

    def _bound_in(self, body: ast.AST) -> set[str]:
        """The variables of a function, which each call of it may find other values in."""
        scope = self._program.flow.scopes.get(body)
        return set(scope.bound) if scope is not None and isinstance(body, FunctionNode) else set()

    @cached_property
    def _assigned_attributes(self) -> set[str]:
        """The attributes that the program assigns after an object is made."""
        found: set[str] = set()
        for module in self._program.flow.modules:
            for node in module.nodes:
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    body = blocks.body_of(module, node)
                    if isinstance(body, FunctionNode) and getattr(body, "name", "") != "__init__":
                        found.add(node.attr)
        return found
