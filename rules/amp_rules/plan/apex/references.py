"""Which names of a file mean something of Apex."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from amp_rules.source import blocks
from amp_rules.source.resolver import Binding, Names, bound_name, imported, names_of
from amp_rules.source.scopes import Scope
from amp_rules.torch import apex as api


class References(Names):
    """The uses of Apex in one file."""

    @cached_property
    def bindings(self) -> list[Binding]:
        """Every name that an import binds to Apex, in the order of the file."""
        found = [item for item in super().bindings if is_apex(item.target)]
        for node in self.star_imports:
            found.extend(self._of_star(node))
        return [*found, *self._for_others(found)]

    def _for_others(self, found: list[Binding]) -> Iterator[Binding]:
        """What one function imports and others use though nothing binds it there: they end there, as the file is.

        Nobody means that. An import at the head of the file, where rewrites have theirs, is one for all.
        """
        top = self.scopes[self.module.tree]
        if any(any(alias.name == "*" for alias in node.names) for node in self.import_statements):
            return
        for item in found:
            if item.scope.is_function and not any(item.name in scope.bound for scope in (top, *self._classes)):
                yield Binding(item.name, item.target, item.statement, top)

    @cached_property
    def _classes(self) -> list[Scope]:
        return [scope for scope in self.scopes.values() if scope.is_class]

    def _of_star(self, node: ast.ImportFrom) -> Iterator[Binding]:
        """The names of a ``*`` that the file uses and nothing else binds."""
        scope = self.scope_of(node)
        for name in sorted(api.EXPORTS.get(node.module or "", ())):
            if name not in scope.bound:
                yield Binding(name, f"{node.module}.{name}", node, scope.owner(name))

    def targets(self, node: ast.expr) -> set[str]:
        """What an expression means of Apex; where branches import a name from other packages too, as its own does."""
        found = super().targets(node)
        if found and isinstance(node, ast.Name) and node.id in self._of_others:
            nearest = self._imported_above(node)
            if nearest is not None:
                return {nearest} if is_apex(nearest) else set()
        return found

    @cached_property
    def _of_others(self) -> frozenset[str]:
        """Names that imports of other packages bind."""
        return frozenset(item.name for item in names_of(self.module).bindings if not is_apex(item.target))

    def _imported_above(self, node: ast.Name) -> str | None:
        """What the last import of the name in the suites around it gives it."""
        statement: ast.AST = blocks.statement_of(self.module, node)
        while isinstance(statement, ast.stmt):
            where = blocks.place(self.module, statement)
            for previous in reversed(where.suite[: where.index]):
                if isinstance(previous, (ast.Import, ast.ImportFrom)):
                    for alias in previous.names:
                        if bound_name(alias) == node.id:
                            return imported(previous, alias)
            if isinstance(where.parent, (*blocks.BODIES, ast.ClassDef)):
                break
            statement = where.parent
        return self._last_of_file(node)

    def _last_of_file(self, node: ast.Name) -> str | None:
        """What a name of the file is when functions run: what its last import gives, where no branch has one."""
        if self.scope_of(node).owner(node.id) is not self.scopes[self.module.tree]:
            return None
        imports = [
            (item, alias) for item in self.import_statements for alias in item.names if bound_name(alias) == node.id
        ]
        if not all(self.is_plain(item) for item, _ in imports):
            return None
        return imported(*imports[-1])

    @cached_property
    def statements(self) -> list[ast.Import | ast.ImportFrom]:
        """The imports of Apex, in the order of the file; those that bind other names too count."""
        return [node for node in self.import_statements if any(is_apex(imported(node, alias)) for alias in node.names)]

    @cached_property
    def star_imports(self) -> list[ast.ImportFrom]:
        """``from apex.x import *``, in the order of the file."""
        return [
            node
            for node in self.import_statements
            if isinstance(node, ast.ImportFrom) and is_apex(node.module) and any(a.name == "*" for a in node.names)
        ]

    def calls(self, target: str) -> list[ast.Call]:
        """The calls of one function or class of Apex."""
        found = []
        for use in self.uses:
            parent = self.module.parents[use.node]
            if use.target == target and isinstance(parent, ast.Call) and parent.func is use.node:
                found.append(parent)
        return found


def is_apex(name: str | None) -> bool:
    """Whether a qualified name belongs to a package that an installation of Apex brings."""
    return name is not None and name.split(".")[0] in api.ROOTS
