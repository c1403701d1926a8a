"""How a file calls something of torch by what it imports itself."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of


class Words:
    """Finds the words of the files of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def word(self, module: Module, target: str) -> str | None:
        """How a file calls something of torch by what it imports at its head; None where it cannot."""
        names = names_of(module)
        package = target
        while package:
            name = names.name_of(package)
            if name is not None and name not in names.rebound and self._is_at_head(module, name):
                return name + target[len(package) :]
            if name is None and (starred := self._by_star(module, package)) is not None:
                return starred + target[len(package) :]
            package = package.rpartition(".")[0]
        return None

    def _by_star(self, module: Module, package: str) -> str | None:
        """The name by which a star import at the head of a file gives it a package that another file imports."""
        names = names_of(module)
        scope = self.program.flow.scopes.get(module.tree) if names.stars else None
        brought = self._brought(module, package, frozenset()) if scope is not None else None
        if brought is None or scope is None or brought in names.imports or names.rebound & {brought}:
            return None
        # What several star imports bring, or the file binds itself, need not be the package.
        found = self.program.flow.values(ast.Name(brought, ast.Load()), scope)
        return brought if {(value.kind, value.ref) for value in found} == {("external", package)} else None

    def _brought(self, module: Module, package: str, seen: frozenset[Module]) -> str | None:
        """The name of a package in what the star imports of a file bring, however many of them there are in a row."""
        for item in module.tree.body:
            if not (isinstance(item, ast.ImportFrom) and item.names[0].name == "*"):
                continue
            other = self.program.project.find(module, item.module or "", item.level)
            if other is None or other in seen or "__all__" in other.source.text:
                continue
            name = names_of(other).name_of(package)
            if name is not None and not name.startswith("_") and self._is_at_head(other, name):
                return name
            if name is None and (further := self._brought(other, package, seen | {module})) is not None:
                return further
        return None

    @staticmethod
    def _is_at_head(module: Module, name: str) -> bool:
        """Whether the file's own suite imports a name, so that every function has it."""
        return any(
            (alias.asname or alias.name.partition(".")[0]) == name
            for item in module.tree.body
            if isinstance(item, (ast.Import, ast.ImportFrom))
            for alias in item.names
        )
