"""Which names of a file mean something of Apex."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from amp_rules.program import blocks
from amp_rules.program.modules import Module
from amp_rules.program.scopes import Scope, build_scopes
from amp_rules.tables import apex_api as api


@dataclass(frozen=True)
class Binding:
    """A name that an import statement gives to something of Apex.

    Attributes:
        name: the name in the file.
        target: what it means, as in ``apex.amp``.
        statement: the import.
        scope: where the name is known.
    """

    name: str
    target: str
    statement: ast.Import | ast.ImportFrom
    scope: Scope


@dataclass(frozen=True)
class Reference:
    """An expression that means something of Apex: the longest chain of attributes that does."""

    node: ast.expr
    target: str


class Names:
    """What the names of one file mean of other packages, by Python's scopes and not by spelling."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.scopes = build_scopes(module)

    @cached_property
    def imports(self) -> list[ast.Import | ast.ImportFrom]:
        """Every import, in the order of the file."""
        found = [node for node in self.module.parents if isinstance(node, (ast.Import, ast.ImportFrom))]
        return sorted(found, key=lambda node: (node.lineno, node.col_offset))

    @cached_property
    def bindings(self) -> list[Binding]:
        """Every name that an import binds, in the order of the file."""
        found = []
        for node in self.imports:
            scope = self.scope_of(node)
            for alias in node.names:
                target = imported(node, alias)
                if target is not None:
                    name = alias.asname or alias.name.split(".")[0]
                    found.append(Binding(name, target, node, scope.owner(name)))
        return found

    @cached_property
    def _by_name(self) -> dict[str, list[Binding]]:
        found: defaultdict[str, list[Binding]] = defaultdict(list)
        for binding in self.bindings:
            found[binding.name].append(binding)
        return found

    def scope_of(self, node: ast.AST) -> Scope:
        """The scope in which the names of ``node`` are looked up."""
        current = node
        for parent in self.module.ancestors(node):
            if parent in self.scopes:
                # A function's decorators, defaults and a class's bases belong to what is around it.
                if isinstance(parent, ast.Lambda) or current in getattr(parent, "body", ()):
                    return self.scopes[parent]
            current = parent
        return self.scopes[self.module.tree]

    def targets(self, node: ast.expr) -> set[str]:
        """What an expression means of other packages: ``apex.amp.initialize``; several where imports disagree."""
        if isinstance(node, ast.Name):
            owner = self.scope_of(node).owner(node.id)
            return {binding.target for binding in self._by_name.get(node.id, ()) if binding.scope is owner}
        if isinstance(node, ast.Attribute):
            return {f"{target}.{node.attr}" for target in self.targets(node.value)}
        return set()

    @cached_property
    def uses(self) -> list[Reference]:
        """Every expression that reads something imported, in the order of the file."""
        found = []
        for node in self.module.parents:
            if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
                continue
            parent = self.module.parents[node]
            if isinstance(parent, ast.Attribute) and isinstance(parent.ctx, ast.Load):
                continue
            targets = self.targets(node)
            if targets:
                found.append(Reference(node, api.canonical(min(targets))))
        return sorted(found, key=lambda item: (item.node.lineno, item.node.col_offset))

    def is_plain(self, node: ast.stmt) -> bool:
        """Whether the statement stands in the file's own suite."""
        return isinstance(blocks.place(self.module, node).parent, ast.Module)


class References(Names):
    """The uses of Apex in one file."""

    @cached_property
    def bindings(self) -> list[Binding]:
        """Every name that an import binds to Apex, in the order of the file."""
        found = [item for item in super().bindings if is_apex(item.target)]
        for node in self.stars:
            found.extend(self._of_star(node))
        return found

    def _of_star(self, node: ast.ImportFrom) -> Iterator[Binding]:
        """The names of a ``*`` that the file uses and nothing else binds."""
        scope = self.scope_of(node)
        for name in sorted(api.EXPORTS.get(node.module or "", ())):
            if name not in scope.bound:
                yield Binding(name, f"{node.module}.{name}", node, scope.owner(name))

    @cached_property
    def statements(self) -> list[ast.Import | ast.ImportFrom]:
        """The imports of Apex, in the order of the file; those that bind other names too count."""
        return [node for node in self.imports if any(is_apex(imported(node, alias)) for alias in node.names)]

    @cached_property
    def stars(self) -> list[ast.ImportFrom]:
        """``from apex.x import *``, in the order of the file."""
        return [
            node
            for node in self.imports
            if isinstance(node, ast.ImportFrom) and is_apex(node.module) and any(a.name == "*" for a in node.names)
        ]

    def target(self, node: ast.expr) -> str | None:
        """The one canonical meaning of an expression, or None."""
        found = {api.canonical(target) for target in self.targets(node)}
        return next(iter(found)) if len(found) == 1 else None

    def calls(self, target: str) -> list[ast.Call]:
        """The calls of one function or class of Apex."""
        found = []
        for use in self.uses:
            parent = self.module.parents[use.node]
            if use.target == target and isinstance(parent, ast.Call) and parent.func is use.node:
                found.append(parent)
        return found


def imported(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str | None:
    """What an import's name means: ``apex.amp`` for ``from apex import amp``; None for the project's own."""
    if isinstance(node, ast.ImportFrom):
        return None if node.level or alias.name == "*" else f"{node.module}.{alias.name}"
    return alias.name if alias.asname else alias.name.split(".")[0]


def is_apex(name: str | None) -> bool:
    """Whether a qualified name belongs to a package that an installation of Apex brings."""
    return name is not None and name.split(".")[0] in api.ROOTS


def root_of(node: ast.expr) -> ast.expr:
    """What a chain of attributes begins with: ``apex`` in ``apex.amp.initialize``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node
