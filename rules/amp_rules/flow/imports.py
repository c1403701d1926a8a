"""What import statements bind."""

from __future__ import annotations

import ast

from amp_rules.flow.cells import Mark
from amp_rules.flow.reached import Reached
from amp_rules.flow.store import Store
from amp_rules.flow.values import Value, dictionary_of
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.scopes import Scope


class Imports:
    """Binds names to modules of the project, to what they define, and to what libraries do."""

    def __init__(self, store: Store, reached: Reached) -> None:
        self._store = store
        self._reached = reached
        # Names that a file has by star imports alone.
        self._starred: set[tuple[ast.AST, str]] = set()

    def plain(self, node: ast.Import, scope: Scope) -> None:
        """``import a.b``, ``import a.b as c``."""
        for alias in node.names:
            if alias in names_of(scope.module).hidden:
                continue
            if alias.asname:
                values = self._reached.imported_module(scope.module, alias.name)
                self._store.write((scope.owner(alias.asname).node, alias.asname), values)
                continue
            parts = alias.name.split(".")
            for length in range(2, len(parts) + 1):
                self._reached.imported_module(scope.module, ".".join(parts[:length]))
            values = self._reached.imported_module(scope.module, parts[0])
            self._store.write((scope.owner(parts[0]).node, parts[0]), values)

    def from_module(self, node: ast.ImportFrom, scope: Scope) -> None:
        """``from a import b``, ``from . import *``."""
        base = node.module or ""
        found = self._reached.module(scope.module, base, node.level)
        for alias in node.names:
            if alias in names_of(scope.module).hidden:
                continue
            if alias.name == "*":
                self._star(found, base, scope)
            else:
                self._member(found, alias, node, scope)

    def _member(self, found: Module | None, alias: ast.alias, node: ast.ImportFrom, scope: Scope) -> None:
        base = node.module or ""
        name = alias.asname or alias.name
        target = (scope.owner(name).node, name)
        dotted = f"{base}.{alias.name}" if base else alias.name
        submodule = self._reached.module(scope.module, dotted, node.level)
        if found is not None:
            if alias.name == "__dict__":  # ``from .models import __dict__ as models``
                self._store.write(target, {dictionary_of(Value("module", found))})
            self._store.write(target, self._store.read((found.tree, alias.name)))
            # ``from . import models`` in the package's own file binds the name to the submodule.
            is_own = found is scope.module and name == alias.name
            # A file of the package may import it before the package has, and hand the name back by a star import.
            is_bound = alias.name in self._reached.scopes[found.tree].bound
            if submodule is not None and (is_own or not is_bound or (found.tree, alias.name) in self._starred):
                self._store.write(target, {Value("module", submodule)})
        elif submodule is not None:
            self._store.write(target, {Value("module", submodule)})
        elif not node.level:
            self._reached.imported.add(f"{base}.{alias.name}")
            self._store.write(target, {Value("external", f"{base}.{alias.name}")})

    def _star(self, found: Module | None, base: str, scope: Scope) -> None:
        top = scope.top
        if found is None:
            self._reached.imported.add(f"{base}.*")
            self._store.write((top.node, Mark.STAR), {Value("external", base)})
            return
        for name in sorted(self._reached.scopes[found.tree].bound):
            if not name.startswith("_"):
                if name not in top.bound:
                    top.bound.add(name)
                    self._starred.add((top.node, name))
                    self._store.all_due()
                self._store.write((top.node, name), self._store.read((found.tree, name)))
        # A package's own star imports bind names only once its body was evaluated.
        self._store.write((top.node, Mark.STAR), self._store.read((found.tree, Mark.STAR)))
        self._store.read((found.tree, Mark.BOUND))
        self._store.write((top.node, Mark.BOUND), {Value("constant", len(top.bound))})
