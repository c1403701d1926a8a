"""Registries: classes whose objects keep classes and functions by name.

All objects of a class share the cells of its attributes, so two registries of one class would hold each other's
entries. Each registry but the first gets a copy of its class, with cells of its own.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable

from amp_rules.flow.parts import Evaluation
from amp_rules.flow.reached import Reached
from amp_rules.flow.store import Store
from amp_rules.flow.values import ClassInfo, Value
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope, scopes_below
from amp_rules.source.syntax import walk

_MAX_LINES = 250
"""Lines of a class that is copied. Registries of well-known libraries have up to 150; a longer class is something else
besides, and copying it for each of its objects would cost time. Its objects share their cells then."""
_TRAINING = frozenset({"backward", "step", "zero_grad", "forward"})


class Registries:
    """Gives registries classes of their own."""

    def __init__(self, store: Store, reached: Reached, evaluation: Evaluation) -> None:
        self._store = store
        self._reached = reached
        self._evaluation = evaluation
        self._known: dict[ClassInfo, bool] = {}
        self._classes: dict[tuple[ClassInfo, ast.Call], ClassInfo] = {}

    def own_class(self, info: ClassInfo, call: ast.Call, scope: Scope) -> ClassInfo:
        """The class of the object that a call makes: a copy of it for a further registry."""
        if not (scope.is_class or isinstance(scope.node, ast.Module)) or not self.is_registry(info):
            return info
        known = self._classes.get((info, call))
        if known is not None or self._store.frozen:
            return known or info
        is_first = not any(original is info for original, _ in self._classes)
        found = self._classes[info, call] = info if is_first else self._copy(info, {})
        return found

    def is_registry(self, info: ClassInfo) -> bool:
        """Whether objects of the class store what they are given under names."""
        known = self._known.get(info)
        if known is None:
            family = info.mro()
            known = self._known[info] = any(_is_told(base, _stores_by_name) for base in family) and all(
                _is_told(base, _is_small) for base in family
            )
        return known

    def owns(self, info: FunctionFacts) -> bool:
        """Whether the function belongs to a registry."""
        owner = self._reached.class_of(info)
        return owner is not None and self.is_registry(owner)

    def _copy(self, info: ClassInfo, copies: dict[ClassInfo, ClassInfo]) -> ClassInfo:
        """A copy of a class and of its bases; a class that is its own base by name is copied once."""
        node = copy.deepcopy(info.facts.node)
        originals = dict(zip(walk(node), walk(info.facts.node), strict=True))
        outer = self._reached.scopes[info.facts.node].parent
        assert outer is not None
        self._reached.add_copies(scopes_below(outer.module, node, outer), originals)
        made = copies[info] = self._reached.classes[node]
        self._known[made] = True
        self._evaluation.definitions.fill_class(made, outer)
        made.bases = [self._copied_base(base, copies) for base in made.bases]
        self._store.all_due()
        return made

    def _copied_base(self, base: Value, copies: dict[ClassInfo, ClassInfo]) -> Value:
        if base.kind != "class" or not self.is_registry(base.ref):
            return base
        return Value("class", copies.get(base.ref) or self._copy(base.ref, copies))


def _is_told(info: ClassInfo, question: Callable[[ast.ClassDef], bool]) -> bool:
    """What the text of a class says, found out once for all programs that its file is part of."""
    answers: dict[ast.ClassDef, bool] = info.facts.module.module.kept.setdefault(question.__name__, {})
    node = info.facts.node
    if node not in answers:
        answers[node] = question(node)
    return answers[node]


def _is_small(node: ast.ClassDef) -> bool:
    return (node.end_lineno or node.lineno) - node.lineno < _MAX_LINES and not any(
        isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in _TRAINING
        for part in walk(node)
    )


def _stores_by_name(node: ast.ClassDef) -> bool:
    """Whether a method stores what it is given under a name: ``self.table[name] = given``."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef):
            parameters = {part.arg for part in walk(method) if isinstance(part, ast.arg)}
            for part in walk(method):
                if isinstance(part, ast.Assign) and isinstance(part.value, ast.Name) and part.value.id in parameters:
                    if any(isinstance(target, ast.Subscript) and _is_own(target.value) for target in part.targets):
                        return True
    return False


def _is_own(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "self"
