"""Where a model is prepared that is to be sharded: before its optimizer, whose parameters would be the old ones."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

from amp_rules.flow.values import Value
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.gradient_averaging import runs_once
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.shards.declined import MODELS, Asked
from amp_rules.roles.kinds import is_optimizer
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.torch.models import RETURNS_RECEIVER

_DEPTH = 4
"""Containers within each other in which parameters are looked for."""


class Places:
    """The places of the models, moved above what makes an optimizer of them.

    Args:
        program: the program.
        homes: where the models would be prepared.
        asked: what is shared out.
        counts: whether a part of a model is shared out; all are where nothing is said.

    Attributes:
        homes: where each model is prepared.
        reasons: the models for which there is no such place.
    """

    def __init__(
        self,
        program: Program,
        homes: list[Home],
        asked: Asked = MODELS,
        counts: Callable[[Value], bool] = lambda _: True,
    ) -> None:
        self._program = program
        self._asked = asked
        self._counts = counts
        self.reasons: list[Declined] = []
        self.homes = list(map(self._moved, homes))
        self.reasons.extend(self._shared(homes))

    def _moved(self, home: Home) -> Home:
        if home.before or home.inline is not None:
            return home  # nothing has seen the model before
        taken = self._taken(home)
        suite = blocks.place(home.module, home.statement).suite
        last = suite.index(home.statement)
        if taken is None or taken > last:
            return home
        if taken == last or any(self._replaces(item, home) for item in suite[taken : last + 1]):
            self.reasons.append(
                declining.decline(
                    self._asked.rule,
                    home.module,
                    suite[taken],
                    f"`{home.module.text(suite[taken])}` takes the parameters of `{home.variable}` before the model "
                    f"is complete on its device: they are no longer trained once {self._asked.once}",
                    "build the optimizer below the last statement that makes, moves or replaces the model",
                )
            )
            return home
        return replace(home, statement=suite[taken], before=True, is_optional=False)

    def _taken(self, home: Home) -> int | None:
        """The index of the first statement beside the place that keeps parameters, or makes an optimizer of them."""
        values = self._models(home)
        made = {call for call in self._optimizers() if self._is_of(call, values)}
        makes = self._program.closure(lambda node: node in made)
        suite = blocks.place(home.module, home.statement).suite
        first = next((index for index, item in enumerate(suite) if home.variable in blocks.writes(item)), -1)
        found = (
            index
            for index, item in enumerate(suite)
            if index > first and not _defines(item) and (makes(item) or self._keeps(item, values))
        )
        return next(found, None)

    def _shared(self, homes: list[Home]) -> Iterator[Declined]:
        """Yield models of which a part may be sharded before, with another one."""
        known: set[Value] = set()
        for home in homes:
            parts = {part for part in self._program.with_parts(self._models(home)) if self._is_made_outside(part)}
            parts = set(filter(self._counts, parts))
            if parts & known or (not self._runs_once(home) and not self._makes_all(home, parts)):
                yield self._asked.decline(
                    home.module,
                    home.statement,
                    f"a {self._asked.part} of `{home.variable}` may be sharded already, with the model that had it "
                    "before",
                )
            known |= parts

    def _is_made_outside(self, part: Value) -> bool:
        """Whether a part is made outside of the classes of models, and so can be given to two of them."""
        located = self._program.locate(part.site) if part.site is not None else None
        return located is not None and located[0] not in self._making

    @cached_property
    def _making(self) -> set[ast.AST]:
        """The functions of models, and those that they call for their layers."""
        program = self._program
        own = {body for body, _ in program.bodies if program.is_model_code(body)}
        return own | program.called_from(node for body in own for node in program.nodes_of(body))

    def _runs_once(self, home: Home) -> bool:
        return runs_once(self._program, home.module, home.statement)

    def _makes_all(self, home: Home, parts: set[Value]) -> bool:
        """Whether each run of the function that prepares a model makes all parts of it anew."""
        nodes = self._program.nodes_of(home.body)
        bodies = self._program.called_from(nodes) | {home.body}
        located = [self._program.locate(part.site) for part in parts if part.site is not None]
        return all(place is not None and place[0] in bodies for place in located)

    def _models(self, home: Home) -> set[Value]:
        cell = self._program.flow.cells.get(home.key)
        return set(cell.values) if cell is not None else set()

    def _is_of(self, call: ast.Call, models: set[Value]) -> bool:
        """Whether an optimizer is made of a model, or of what is not known."""
        found = self._program.models_of_optimizer(call)
        return not found or bool(found & self._program.with_parts(models))

    def _keeps(self, statement: ast.stmt, models: set[Value]) -> bool:
        """Whether a statement gives a variable parameters of a model: ``groups = [{"params": net.parameters()}]``."""
        if not isinstance(statement, ast.Assign):
            return False
        located = self._program.locate(statement)
        if located is None:
            return False
        held = self._program.flow.values(statement.value, located[1])
        for _ in range(_DEPTH):
            if any(value.kind == "parameters" and (value.ref in models or not models) for value in held):
                return True
            held = self._program.flow.elements(held)
        return False

    def _optimizers(self) -> Iterator[ast.Call]:
        for step in self._program.steps:
            for value in self._program.flow.values(step.optimizer, step.scope):
                if is_optimizer(value) and isinstance(value.site, ast.Call):
                    yield value.site

    def _replaces(self, statement: ast.stmt, home: Home) -> bool:
        """Whether a statement gives the variable another model, or moves the one that it has."""
        if blocks.touches({home.variable}, blocks.writes(statement)):
            return True
        return any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in RETURNS_RECEIVER - {"train", "eval", "requires_grad_"}
            and blocks.path_of(node.func.value) == home.variable
            for node in walk(statement)
        )


def _defines(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
