"""States of sharded models and their optimizers that go into files: all ranks put them together, and one writes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from amp_rules.flow.values import Value
from amp_rules.plan.checkpoint_keys import stepped_optimizers, written_values
from amp_rules.plan.declining import Declined
from amp_rules.plan.shards.afterwards import Afterwards
from amp_rules.plan.shards.declined import MODELS, Asked
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.scopes import Scope

_STATE, _LOAD = "state_dict", "load_state_dict"
_DEPTH = 4
"""Containers within each other in which a state is looked for."""


class States:
    """The calls of ``state_dict`` on what is sharded, after it was.

    Args:
        program: the program.
        afterwards: what runs after the models were sharded.
        asked: what is shared out.
        counts: whether a model is sharded; those that are trained where nothing is said.

    Attributes:
        saved: those whose states are written to files, and used for nothing else.
        loaded: those whose states are kept and loaded again, and used for nothing else.
        reasons: what is done with others that shards do not bear.
    """

    def __init__(
        self,
        program: Program,
        afterwards: Afterwards,
        asked: Asked = MODELS,
        counts: Callable[[Value], bool] | None = None,
    ) -> None:
        self._program = program
        self._asked = asked
        self._counts = counts or program.is_trained
        self._optimizers = stepped_optimizers(program)
        self.saved: list[Site] = []
        self.loaded: list[Site] = []
        self.reasons: list[Declined] = []
        written = self._reached(written_values(program))
        loaded = self._reached(self._given_to_models())
        for site in self._calls():
            assert isinstance(site.node, ast.Call)
            if not afterwards.runs(site.node, site.body):
                continue
            value = self._value(site)
            is_saved, is_loaded = value in written, value in loaded
            if is_saved and not is_loaded and self._only_goes_on(site, value):
                self.saved.append(site)
            elif is_loaded and not is_saved and self._only_goes_on(site, value):
                self.loaded.append(site)
            else:
                self._decline(site, is_saved=is_saved)

    def _calls(self) -> Iterator[Site]:
        for call, body, scope in self._program.calls():
            if not (isinstance(call.func, ast.Attribute) and call.func.attr == _STATE) or call.args or call.keywords:
                continue
            if not self._program.is_model_code(body) and self._is_sharded(call.func.value, scope):
                yield Site(scope.module, scope, body, call)

    def _is_sharded(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression is a sharded model, a part of one, or an optimizer."""
        models = self._program.roles.modules(node, scope)
        if any(map(self._counts, models)):
            return True
        return bool(self._program.flow.values(node, scope) & self._optimizers)

    def _value(self, site: Site) -> Value | None:
        assert isinstance(site.node, ast.expr)
        parent = site.module.parents[site.node]
        is_copied = isinstance(parent, ast.Call) and self._program.callee_names(parent, site.scope) == {"copy.deepcopy"}
        node = parent if is_copied and self._asked.is_plain and isinstance(parent, ast.expr) else site.node
        values = self._program.flow.values(node, site.scope)
        return next((value for value in values if value.site is node), None)

    def _given_to_models(self) -> Iterator[Value]:
        """What the sharded models and their optimizers load."""
        for call, _, scope in self._program.calls():
            if isinstance(call.func, ast.Attribute) and call.func.attr == _LOAD and call.args:
                if self._is_sharded(call.func.value, scope):
                    yield from self._program.flow.values(call.args[0], scope)

    def _reached(self, values: Iterable[Value]) -> set[Value]:
        """The values, and what containers among them hold."""
        found: set[Value] = set()
        pending = set(values)
        for _ in range(_DEPTH):
            found |= pending
            pending = self._program.flow.elements(pending) - found
        return found

    def _only_goes_on(self, site: Site, value: Value | None) -> bool:
        """Whether nothing is asked of a state where it is kept: ``del state["fc.weight"]``, ``state.items()``."""
        parents = site.module.parents
        if isinstance(parents[site.node], (ast.Attribute, ast.Subscript, ast.For, ast.comprehension)):
            return False
        if value is None:
            return True
        for node, _, scope in self._program.nodes():
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                parent = scope.module.parents[node]
                if isinstance(parent, (ast.Attribute, ast.Subscript, ast.For, ast.comprehension)) and (
                    getattr(parent, "value", None) is node or getattr(parent, "iter", None) is node
                ):
                    if value in self._program.flow.values(node, scope):
                        return False
        return True

    def _decline(self, site: Site, *, is_saved: bool) -> None:
        assert isinstance(site.node, ast.Call)
        text = site.module.text(site.node)
        if is_saved:
            message = f"`{text}` is saved and used for something else as well: the whole state is on one process only"
        else:
            message = f"`{text}` is neither saved nor loaded as it is, and {self._asked.state}"
        self.reasons.append(
            self._asked.decline(
                site.module,
                site.node,
                message,
                "save it by `amp.full_state_dict`, which all processes call, and load what else is needed from there",
            )
        )
