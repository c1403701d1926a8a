"""``functools.partial``: the call that it stands for, once it is made."""

from __future__ import annotations

import ast
from dataclasses import replace

from amp_rules.flow.call_graph import CallGraph
from amp_rules.flow.parts import Evaluation, Invocation
from amp_rules.flow.store import Store
from amp_rules.flow.values import Value
from amp_rules.source.scopes import Scope

_BINDABLE = frozenset({"function", "class", "instance", "partial"})


class Partials:
    """Functions, classes and callable objects with some of their arguments given in advance."""

    def __init__(self, store: Store, graph: CallGraph, evaluation: Evaluation) -> None:
        self._store = store
        self._graph = graph
        self._evaluation = evaluation
        self._made: dict[ast.AST, Invocation] = {}
        self._whole_calls: dict[tuple[ast.Call, ast.Call], ast.Call] = {}

    def make(self, given: Invocation) -> set[Value]:
        """What ``partial(function, ...)`` gives; of what is not the project's own, the function itself."""
        self._made[given.node] = given
        return {
            Value("partial", value, given.node)
            if value.kind in _BINDABLE and not _is_from(value, given.node)
            else value
            for value in given.first
        }

    def apply(self, target: Value, given: Invocation) -> set[Value]:
        """What calling a partial function gives."""
        assert target.site is not None
        # What was given when it was made is kept in no cell.
        self._store.stay_due()
        made = self._made[target.site]
        whole = self._whole_call(made, given)
        result = self._evaluation.calls.apply(
            target.ref,
            replace(
                given,
                node=whole,
                arguments=[*made.arguments[1:], *given.arguments],
                keywords={**made.keywords, **given.keywords},
            ),
        )
        self._graph.take_over(given.node, whole)
        # What is made by the call is told apart by where the call stands.
        return {item.at(given.node) if item.site is whole else item for item in result}

    def _whole_call(self, made: Invocation, given: Invocation) -> ast.Call:
        """The plain call with all arguments; those that were given in another body stand there as strangers."""
        node, scope = given.node, given.scope
        whole = self._whole_calls.get((made.node, node))
        if whole is None:
            bound = made.node.args[1:]
            names = made.node.keywords
            if made.scope is not scope:
                bound = [ast.copy_location(ast.Name("<bound>", ast.Load()), node) for _ in bound]
                names = []
            whole = ast.Call(made.node.args[0], [*bound, *node.args], [*names, *node.keywords])
            ast.copy_location(whole, node)
            stand_beside(whole, node, scope)
            self._whole_calls[made.node, node] = whole
        return whole


def _is_from(value: Value, node: ast.Call) -> bool:
    """Whether a partial function was made by this very call: ``f = partial(f, x)`` in a loop would never end."""
    while value.kind == "partial":
        if value.site is node:
            return True
        value = value.ref
    return False


def stand_beside(whole: ast.Call, node: ast.Call, scope: Scope) -> None:
    """Give a call that is put together the place of the one that it stands for."""
    parent = scope.module.parents.get(node)
    if parent is not None:
        scope.module.parents[whole] = parent
