"""Carrying out decorations of functions and classes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

import libcst as cst

from amp_rules.text.actions import Action, Decorate
from amp_rules.text.places import Place, Places

Definition = TypeVar("Definition", cst.FunctionDef, cst.ClassDef)


class Decorating:
    """Puts decorators above definitions."""

    def __init__(self, actions: Sequence[Action], places: Places, done: set[int]) -> None:
        self._places = places
        self._done = done
        self._decorations: defaultdict[Place, list[Decorate]] = defaultdict(list)
        for action in actions:
            if isinstance(action, Decorate):
                self._decorations[places.of_definition(action.definition)].append(action)

    def decorated(self, original: Definition, updated: Definition) -> Definition:
        """The definition with its new decorators."""
        actions = self._decorations.get(self._places.start(original) or (0, 0))
        if not actions:
            return updated
        self._done.update(id(item) for item in actions)
        added: list[cst.Decorator] = [cst.Decorator(cst.parse_expression(item.code)) for item in actions]
        # A comment below the other decorators stays where it is.
        added[0] = added[0].with_changes(leading_lines=updated.lines_after_decorators)
        return updated.with_changes(decorators=[*updated.decorators, *added], lines_after_decorators=())
