"""Whether a model was trained before the program comes to a place, under another name or by an object that has it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from amp_rules.flow.values import Value
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module


class TrainedBefore:
    """Answers for the models of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._runs: dict[Value, Callable[[ast.AST], bool]] = {}
        self._makes: dict[Value, Callable[[ast.AST], bool]] = {}

    def is_trained(self, value: Value, statement: ast.stmt, module: Module) -> bool:
        """Whether each way to a statement leads past a statement that trains the model.

        A statement that makes the model gives a new one, however the one before was trained.
        """
        return not self._has_maker(value)(statement) and self._on_each_way(value, statement, module, frozenset())

    def _on_each_way(self, value: Value, node: ast.AST, module: Module, seen: frozenset[ast.AST]) -> bool:
        makes = self._has_maker(value)
        for earlier in _earlier(module, node):
            if self._trains(value, earlier):
                return True
            # What ran before had another model.
            if makes(earlier):
                return False
        body = blocks.body_of(module, node)
        info = self._program.function_of(body)
        if info is None or body in seen:
            return False
        ways = list(map(calling, self._program.flow.callers(info)))
        return bool(ways) and all(self._is_trained_at(value, way, seen | {body}) for way in ways)

    def _is_trained_at(self, value: Value, way: Site, seen: frozenset[ast.AST]) -> bool:
        """Whether the model was trained before a call, which may make it for what it calls: ``Trainer(Net())``."""
        assert isinstance(way.node, ast.Call)
        given = [*way.node.args, *(item.value for item in way.node.keywords)]
        return not any(map(self._has_maker(value), given)) and self._on_each_way(value, way.node, way.module, seen)

    def _trains(self, value: Value, statement: ast.stmt) -> bool:
        """Whether running a statement runs the model with gradients, and a backward pass."""
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return False
        return self._program.runs_backward(statement) and self._has_run(value)(statement)

    def _has_run(self, value: Value) -> Callable[[ast.AST], bool]:
        known = self._runs.get(value)
        if known is None:

            def direct(node: ast.AST) -> bool:
                located = self._program.locate(node) if isinstance(node, ast.Call) else None
                if located is None or not isinstance(node, ast.Call):
                    return False
                return value in self._program.called_models(node, located[1])

            known = self._runs[value] = self._program.closure(direct, with_gradients=True)
        return known

    def _has_maker(self, value: Value) -> Callable[[ast.AST], bool]:
        known = self._makes.get(value)
        if known is None:
            known = self._makes[value] = self._program.closure(lambda node: node is value.site)
        return known


def _earlier(module: Module, node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of the same body that run before a node, the last one first."""
    for statement in (blocks.statement_of(module, node), *blocks.enclosing(module, blocks.statement_of(module, node))):
        place = blocks.place(module, statement)
        yield from reversed(place.suite[: place.index])
