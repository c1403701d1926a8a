"""Which parameter gets which argument of a call, and what ``*args`` and ``**kwargs`` gather and pass on."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from amp_rules.flow.cells import Mark
from amp_rules.flow.containers import Containers
from amp_rules.flow.parts import Invocation, Keywords
from amp_rules.flow.store import Store
from amp_rules.flow.values import Form, Value
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk


class Arguments:
    """Binds the arguments of calls to the parameters of functions of the project."""

    def __init__(self, store: Store, containers: Containers) -> None:
        self._store = store
        self._containers = containers

    def bind(
        self, info: FunctionFacts, given: Invocation, receivers: set[Value], is_method: bool
    ) -> dict[str, set[Value]]:
        """What each parameter gets from a call; what ``*args`` and ``**kwargs`` gather is stored at once."""
        bound: dict[str, set[Value]] = {}
        parameters = info.by_place
        takes_receiver = not info.is_static and (
            is_method or info.is_class_method or any(receiver.kind == "instance" for receiver in receivers)
        )
        if takes_receiver and parameters and receivers:
            bound[parameters[0]] = set(receivers)
            parameters = parameters[1:]
        position, certain = 0, 0
        for argument, values in zip(given.node.args, given.arguments, strict=False):
            if isinstance(argument, ast.Starred):
                gathered = _gathered(argument.value, given.scope)
                passed_on = {value for value in values if value.site is gathered is not None}
                self._spread(info, parameters[position:], passed_on, values - passed_on, bound)
                position = len(parameters)
                continue
            if position < len(parameters):
                bound.setdefault(parameters[position], set()).update(values)
                certain += position == certain
            elif info.node.args.vararg is not None:
                self._gather_positional(info, position - len(parameters), values)
            position += 1
        # Behind ``*args`` each parameter may be one of ``**kwargs`` still.
        rest = [*parameters[certain:], *(item.arg for item in info.node.args.kwonlyargs)]
        self._bind_keywords(info, given.keywords, rest, bound)
        return bound

    def _spread(
        self,
        info: FunctionFacts,
        parameters: Sequence[str],
        passed_on: set[Value],
        given: set[Value],
        bound: dict[str, set[Value]],
    ) -> None:
        """Give parameters, and ``*args`` behind them, what ``*values`` of a call holds.

        Args:
            info: the function that is called.
            parameters: those that no argument before has.
            passed_on: what ``*args`` of the caller gathered: each parameter gets its own.
            given: anything else that is spread: each parameter may get each element.
            bound: what each parameter has so far.
        """
        others = self._containers.elements(given)
        for index, parameter in enumerate(parameters):
            bound.setdefault(parameter, set()).update(others, self._containers.element(passed_on, index))
        if info.node.args.vararg is None:
            return
        if others:
            self._gather_positional(info, Mark.ANY, others)
        keys = {key for value in passed_on for key in self._containers.keys(value) if isinstance(key, int)}
        for index in sorted(key for key in keys if key >= len(parameters)):
            self._gather_positional(info, index - len(parameters), self._containers.element(passed_on, index))

    def _bind_keywords(
        self, info: FunctionFacts, keywords: Keywords, rest: list[str], bound: dict[str, set[Value]]
    ) -> None:
        names = info.parameters
        for keyword, values in keywords.items():
            if keyword is None:
                # What a call names itself is not among ``**kwargs``: Python refuses it twice.
                for name in (item for item in rest if item not in keywords):
                    bound.setdefault(name, set()).update(self._containers.element(values, name))
            if keyword in names:
                bound.setdefault(keyword, set()).update(values)
            else:
                self._gather_keyword(info, keyword, values)

    def _gather_keyword(self, info: FunctionFacts, keyword: str | None, values: set[Value]) -> None:
        """What ``**kwargs`` of the function holds besides; all items of a mapping where there is no keyword."""
        rest = info.node.args.kwarg
        if rest is None:
            return
        holder = Value("sequence", Form.PLAIN, rest)
        if keyword is None:
            self._containers.copy_items(holder, values)
        else:
            self._store.write_element(holder, keyword, values)
        self._store.write((info.node, rest.arg), {holder})

    def _gather_positional(self, info: FunctionFacts, index: int | Mark, values: set[Value]) -> None:
        """What ``*args`` of the function holds, which it has, at one place or anywhere."""
        rest = info.node.args.vararg
        if rest is None:
            return
        holder = Value("sequence", Form.PLAIN, rest)
        self._store.write_element(holder, index, values)
        self._store.write((info.node, rest.arg), {holder})


def _gathered(node: ast.expr, scope: Scope) -> ast.arg | None:
    """The parameter that ``*node`` passes on as it was gathered: ``super().__init__(*args)``.

    None where it can have other places by then: a part of it, ``args[1:]``, is the same value.
    """
    function = scope.node
    if not isinstance(node, ast.Name) or not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return None
    rest = function.args.vararg
    if rest is None or rest.arg != node.id:
        return None
    stores = (item for item in walk(function) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store))
    return None if any(item.id == node.id for item in stores) else rest
