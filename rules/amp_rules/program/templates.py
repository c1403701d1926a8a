"""Registries: classes whose objects keep classes and functions by name.

All objects of a class share the cells of its attributes, so two registries of one class would hold each other's
entries. Each registry but the first gets a copy of its class, with cells of its own.
"""

from __future__ import annotations

import ast
import copy

from amp_rules.program.cells import Cells
from amp_rules.program.scopes import Scope, scopes_below
from amp_rules.program.syntax import walk
from amp_rules.program.values import ClassInfo, FunctionInfo, Value

_MAX_LINES = 250
_TRAINING = frozenset({"backward", "step", "zero_grad", "forward"})


class Templates(Cells):
    """Gives registries classes of their own."""

    def _fill_class(self, info: ClassInfo, scope: Scope) -> None:
        raise NotImplementedError

    def _own_class(self, info: ClassInfo, call: ast.Call, scope: Scope) -> ClassInfo:
        """The class of the object that a call makes: a copy of it for a further registry."""
        if not (scope.is_class or isinstance(scope.node, ast.Module)) or not self._is_registry(info):
            return info
        known = self._copies.get((info, call))
        if known is not None or self._frozen:
            return known or info
        is_first = not any(original is info for original, _ in self._copies)
        found = self._copies[info, call] = info if is_first else self._copy_class(info)
        return found

    def _is_registry(self, info: ClassInfo) -> bool:
        known = self._registries.get(info)
        if known is None:
            family = info.mro()
            known = self._registries[info] = any(_stores_by_name(base.node) for base in family) and all(
                _is_small(base.node) for base in family
            )
        return known

    def _is_registered(self, info: FunctionInfo) -> bool:
        """Whether the function belongs to a registry."""
        return info.owner is not None and self._is_registry(info.owner)

    def _copy_class(self, info: ClassInfo) -> ClassInfo:
        node = copy.deepcopy(info.node)
        scopes = scopes_below(info.module, node, info.outer)
        self._add_scopes(scopes)
        self._copied.update(scopes)
        self._original.update(zip(walk(node), walk(info.node), strict=True))
        made = self.classes[node]
        self._registries[made] = True
        self._fill_class(made, info.outer)
        made.bases = [
            Value("class", self._copy_class(base.ref)) if base.kind == "class" and self._is_registry(base.ref) else base
            for base in made.bases
        ]
        return made


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
