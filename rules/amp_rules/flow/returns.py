"""What a function returns to one of its calls: ``make("resnet")`` and ``make("vgg")`` differ."""

from __future__ import annotations

import ast

from amp_rules.flow.cells import Mark
from amp_rules.flow.local_variables import LocalVariables
from amp_rules.flow.parts import CallVariables, Evaluation, Overlay
from amp_rules.flow.reached import Reached
from amp_rules.flow.registries import Registries
from amp_rules.flow.store import Store
from amp_rules.flow.values import Value
from amp_rules.roles.kinds import is_module
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.syntax import walk

_MAX_RETURNS = 4
"""``return`` statements of a function that are evaluated anew for each of its calls. A longer chain of choices gives
every call all of them."""
_MAX_ASSIGNMENTS = 8
"""Assignments that what is returned is computed from. Factories have one to three; beyond, evaluating them for each
call costs too much, and a call gets what any call gets."""
_MAX_INLINED = 3
"""Calls within calls that are evaluated with their own arguments. The work grows with the product of their numbers; a
factory that calls a factory that calls a registry needs three."""
_DECISIVE = frozenset({"class", "function", "module", "constant", "sequence", "external"})


class Returns:
    """Evaluates what is returned with the arguments of the call where that makes a difference."""

    def __init__(
        self,
        store: Store,
        reached: Reached,
        registries: Registries,
        variables: LocalVariables,
        evaluation: Evaluation,
    ) -> None:
        self._store = store
        self._reached = reached
        self._registries = registries
        self._variables = variables
        self._evaluation = evaluation
        self._named: dict[ast.AST, set[str]] = {}
        self._slices: dict[ast.AST, set[str] | None] = {}
        self._inlining: list[FunctionFacts] = []
        # The functions that the call which is evaluated has come to; below one of them it would give something else.
        self._followed: set[FunctionFacts] = set()
        self._known: dict[object, tuple[set[Value], set[FunctionFacts]]] = {}
        self._known_since = -1

    def of(self, info: FunctionFacts, bound: dict[str, set[Value]]) -> set[Value]:
        """What a call returns that gives the parameters these values."""
        if len(info.returns) > _MAX_RETURNS or not bound:
            return self._of_any_call(info)
        direct = self._named_by(info)
        frame = self._frame(info, direct, bound)
        # A function that calls itself gets what any call gets.
        if frame is None or len(self._inlining) >= _MAX_INLINED:
            return self._of_any_call(info)
        if info in self._inlining:
            self._followed.add(info)
            return self._of_any_call(info)
        return self._of_frame(info, frame, direct)

    def _of_frame(self, info: FunctionFacts, frame: Overlay, direct: set[str]) -> set[Value]:
        """What is returned with these variables, evaluated once for all calls of a statement that give the same.

        Many objects can be called in one place, and many of their methods call the same ones.
        """
        if self._known_since != self._store.evaluations:
            self._known, self._known_since = {}, self._store.evaluations
        values = frozenset((name, frozenset(values)) for name, values in frame.items())
        key = info, len(self._inlining), frame.__class__, values
        known = self._known.get(key)
        if known is None or not known[1].isdisjoint(self._inlining):
            outer, self._followed = self._followed, {info}
            self._inlining.append(info)
            try:
                frame = self._reassigned(info, frame, direct)
                evaluate = self._evaluation.expressions.evaluate
                scope = self._reached.scopes[info.node]
                known = set().union(*(evaluate(item, scope, frame) for item in info.returns)), self._followed
            finally:
                self._inlining.pop()
                self._followed = outer
            if known[1].isdisjoint(self._inlining):
                self._known[key] = known
        self._followed |= known[1]
        return known[0]

    def _named_by(self, info: FunctionFacts) -> set[str]:
        """The variables that stand in what is returned; for ``super()`` the object itself."""
        known = self._named.get(info.node)
        if known is None:
            known = {child.id for item in info.returns for child in walk(item) if isinstance(child, ast.Name)}
            if "super" in known and info.receiver is not None:
                known.add(info.receiver)
            self._named[info.node] = known
        return known

    def _of_any_call(self, info: FunctionFacts) -> set[Value]:
        return set(self._store.read((info.node, Mark.RETURN)))

    def _frame(self, info: FunctionFacts, direct: set[str], bound: dict[str, set[Value]]) -> Overlay | None:
        """The variables in which this call may differ from others; None where what is returned does not."""
        depends = self._slice_of(info, direct)
        if depends is not None:
            decisive = any(self._is_decisive(value) for name in depends & set(bound) for value in bound[name])
            if decisive and (info.cls is None or self._registries.owns(info)):
                return CallVariables(bound)
        return bound if direct & set(bound) else None

    def _reassigned(self, info: FunctionFacts, frame: Overlay, names: set[str]) -> Overlay:
        """Parameters that the function changes before it returns them: ``net = Wrapper(net)``."""
        owner = self._reached.class_of(info)
        if isinstance(info.node, ast.Lambda) or (owner is not None and is_module(Value("instance", owner))):
            return frame
        for name in sorted(names & set(frame)):
            given = self._variables[info.node].get(name, ())
            if 1 < len(given) <= _MAX_ASSIGNMENTS:  # ``if name == "a": name = A()``, ``elif name == "b": name = B()``
                evaluate, scope = self._evaluation.expressions.evaluate, self._reached.scopes[info.node]
                for item in given:
                    frame[name] = frame[name] | evaluate(item, scope, frame)
            elif len(given) == 1:
                values = self._evaluation.expressions.evaluate(given[0], self._reached.scopes[info.node], frame)
                always = any(isinstance(item, ast.Assign) and item.value is given[0] for item in info.body)
                frame[name] = values if values and always else frame[name] | values
        return frame

    def _is_decisive(self, value: Value) -> bool:
        """Whether what a factory makes may depend on the argument."""
        return value.kind in _DECISIVE or (value.kind == "instance" and self._registries.is_registry(value.ref))

    def _slice_of(self, info: FunctionFacts, direct: set[str]) -> set[str] | None:
        """The variables that what is returned is computed from; None when these are too many to look at each time."""
        if info.node not in self._slices:
            definitions = self._variables[info.node]
            names, pending, size = set(direct), list(direct), 0
            while pending:
                for value in definitions.get(pending.pop(), ()):
                    size += 1
                    found = {child.id for child in walk(value) if isinstance(child, ast.Name)} - names
                    names |= found
                    pending.extend(found)
            self._slices[info.node] = names if 0 < size <= _MAX_ASSIGNMENTS else None
        return self._slices[info.node]
