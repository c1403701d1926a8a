"""Models that a class or function is given by code that is not part of the program.

A file that holds a trainer and no script that makes one says nothing of the model but what it asks of it. What a
parameter of a function holds that nothing calls is not known; where it is used as a model, it is one, of any class.
"""

from __future__ import annotations

import ast

from amp_rules.flow.call_graph import CallGraph
from amp_rules.flow.cells import CellKey
from amp_rules.flow.expressions import ExpressionEvaluator
from amp_rules.flow.reached import Reached
from amp_rules.flow.store import Store
from amp_rules.flow.values import GIVEN_MODEL, Value
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope, arguments_of
from amp_rules.torch.models import RETURNS_RECEIVER

ASKED = frozenset({"parameters", "named_parameters"})
"""What only a model is asked for, as a method: optimizers are made of it."""


class GivenModels:
    """Finds the parameters that hold such models, once all that the program itself says is known."""

    def __init__(self, store: Store, reached: Reached, graph: CallGraph, expressions: ExpressionEvaluator) -> None:
        self._store = store
        self._reached = reached
        self._graph = graph
        self._expressions = expressions

    def add(self) -> None:
        """Give each such parameter a model; what follows from that is for the next rounds."""
        for node, info in list(self._reached.functions.items()):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or not info.module.module.is_entry:
                continue
            if self._graph.callers(info) or node not in self._store.bodies:
                continue
            for argument in arguments_of(node):
                cell = self._store.cells.get((node, argument.arg))
                if argument.arg != info.receiver and not (cell is not None and cell.values):
                    if self._is_asked(info, argument.arg):
                        made = Value("object", GIVEN_MODEL, argument)
                        self._store.write((node, argument.arg), {made})

    def _is_asked(self, info: FunctionFacts, name: str) -> bool:
        """Whether the parameter, or a variable that it is put into as it is, is asked for its parameters."""
        scope = self._reached.scopes[info.node]
        keys: list[CellKey] = [(info.node, name)]
        for item in info.nodes:
            if isinstance(item, ast.Assign) and _plain(item.value) == name:
                keys += [key for target in item.targets if (key := self._key(target, scope)) is not None]
        return any(self._expressions.uses.get(key, set()) & ASKED for key in keys)

    def _key(self, target: ast.expr, scope: Scope) -> CellKey | None:
        is_variable = isinstance(target, (ast.Name, ast.Attribute))
        return self._expressions.key(target, scope) if is_variable else None


def _plain(node: ast.expr) -> str | None:
    """The name in ``model``, ``model.to(device)``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in RETURNS_RECEIVER:
        node = node.func.value
    return node.id if isinstance(node, ast.Name) else None
