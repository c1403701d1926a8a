"""Places that no run comes to, by tests whose outcome is known; what values are known is for subclasses to say."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Sequence

from amp_rules.roles.program import Program
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import FileIndex, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import ORDERS
from amp_rules.torch.idioms import VERSION_OF_TORCH

MAX_DEPTH = 6
"""Names, functions, attributes and callers between a test and what decides it; helpers have two or three."""

UNKNOWN = object()


class DecidedTests(ABC):
    """Answers for the places of a program.

    Args:
        program: the program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._indexes: dict[Module, FileIndex] = {}

    def keep_out(self, module: Module, node: ast.AST) -> bool:
        """Whether no run comes to a place, by tests in its function or on all ways there."""
        return self._keep_out(module, node, 0)

    def _keep_out(self, module: Module, node: ast.AST, depth: int) -> bool:
        located = self._program.locate(node)
        if located is None or depth > MAX_DEPTH:
            return False
        body, scope = located
        for test, holds in self._index(module).branches(node):
            value = self._value(test, scope, 0)
            if value is not UNKNOWN and bool(value) is not holds:
                return True
        info = self._program.function_of(body)
        if info is None:
            return False
        if self._is_never_made(module, info, depth):
            return True
        calls = self._calls(info)
        return bool(calls) and all(self._keep_out(where.module, call, depth + 1) for call, where in calls)

    def _index(self, module: Module) -> FileIndex:
        if module not in self._indexes:
            self._indexes[module] = FileIndex(module, {})
        return self._indexes[module]

    def _value(self, node: ast.expr, scope: Scope, depth: int) -> object:
        """What an expression always is; ``UNKNOWN`` where that is not known."""
        if depth > MAX_DEPTH:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self._value(node.operand, scope, depth)
            return value if value is UNKNOWN else not value
        if isinstance(node, ast.BoolOp):
            values = [self._value(item, scope, depth) for item in node.values]
            decides = isinstance(node.op, ast.Or)
            if any(value is not UNKNOWN and bool(value) is decides for value in values):
                return decides
            return UNKNOWN if UNKNOWN in values else not decides
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in ORDERS:
            if _is_no_version(node.left, node.comparators[0]):
                return isinstance(node.ops[0], ast.NotEq)
            left, right = (self._value(item, scope, depth) for item in (node.left, node.comparators[0]))
            is_number = isinstance(left, int) and isinstance(right, int)
            return ORDERS[type(node.ops[0])](left, right) if is_number else UNKNOWN
        return self._value_of_other(node, scope, depth)

    @abstractmethod
    def _value_of_other(self, node: ast.expr, scope: Scope, depth: int) -> object:
        """The same of an expression that is neither a constant nor put together of tests."""

    @abstractmethod
    def _calls(self, info: FunctionFacts) -> Sequence[tuple[ast.Call, Scope]]:
        """The calls by which a run comes into a function; none where they are not known."""

    def _is_never_made(self, module: Module, info: FunctionFacts, depth: int) -> bool:
        """Whether a function is defined where no run comes to."""
        return False


def _is_no_version(asked: ast.expr, other: ast.expr) -> bool:
    """Whether torch's version is compared with what none is called, as ``torch.__version__ == "parrots"``."""
    text = literal(other)
    return isinstance(text, str) and ast.unparse(asked) == VERSION_OF_TORCH and not any(map(str.isdigit, text))
