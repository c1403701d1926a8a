"""Which generators have to give all processes the same numbers from the start.

DistributedDataParallel gives all processes the first one's weights, and noise need not be the same. What is drawn
before the training otherwise, a split or an order, does.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.plain_torch.generators import DRAW_NOTHING, DRAWS_FROM_NUMPY, draws_of, library_of
from amp_rules.plain_torch.training_start import TrainingStart
from amp_rules.plain_torch.translation import Translation
from amp_rules.roles.kinds import is_module, is_without_parameters
from amp_rules.source.syntax import walk

_COPIES = frozenset({"copy.deepcopy", "torch.clone", "torch.nn.utils.parameters_to_vector"})
_COPYING_METHODS = frozenset({"state_dict", "clone"})
"""What may keep weights as a process drew them, from before the first one's become those of all."""


class CommonDraws:
    """Decides for the generators of a program."""

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._program = translation.program
        self._start = translation.part(TrainingStart)

    def has(self, library: str) -> bool:
        """Whether something has to be drawn alike from a library's generator from the start."""
        if self._start.loop is None or self._has_strangers or any(self._draws_before(library)):
            return True
        if library == "numpy":
            return bool(self._roots & DRAWS_FROM_NUMPY)
        is_asked = any(self._translation.uses_of("same_seed", "seed_alike"))
        return library == "torch" and (is_asked or any(self._models_apart()) or any(self._copies_before()))

    @property
    def _roots(self) -> set[str]:
        return {name.split(".")[0] for name in self._program.flow.imported}

    @property
    def _has_strangers(self) -> bool:
        """Whether there are libraries of which is not known what they draw."""
        return bool(self._roots - DRAW_NOTHING - sys.stdlib_module_names)

    def _draws_before(self, library: str) -> Iterator[ast.Call]:
        """Yield what is drawn outside of the training."""
        for call in draws_of(self._program):
            if not self._start.is_within(call) and library_of(self._program, call) == library:
                yield call

    def _models_apart(self) -> Iterator[Value]:
        """Yield the models whose weights nothing gives to all processes."""
        wrapped = {
            value
            for use in self._translation.uses_of("prepare_model")
            if use.call is not None and use.call.args
            for value in self._program.roles.modules(use.argument, use.scope)
        }
        parts = {node for value in wrapped if value.site is not None for node in walk(value.site)}
        for call, body, scope in self._program.calls():
            if self._program.is_model_code(body) or call in parts:
                continue
            for value in self._program.flow.values(call, scope):
                is_made = value.site is call and not value.is_result and is_module(value)
                if is_made and value not in wrapped and not is_without_parameters(value):
                    yield value

    def _copies_before(self) -> Iterator[ast.Call]:
        """Yield what may keep weights from before the training."""
        for call, _, scope in self._program.calls():
            is_method = isinstance(call.func, ast.Attribute) and call.func.attr in _COPYING_METHODS
            if (is_method or self._program.callee_names(call, scope) & _COPIES) and not self._start.is_within(call):
                yield call
