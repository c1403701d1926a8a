"""Expressions that get a statement of their own, above the one they stand in."""

from __future__ import annotations

import ast

from amp_rules.plain_torch.translation import Translation
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.text.taking_out import taken_out


class Hoisting:
    """The variables that new statements of a program assign."""

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._taken: dict[ast.stmt, set[str]] = {}

    def hoist(self, module: Module, node: ast.expr, wanted: str, below: str = "") -> str:
        """Assign an expression to a variable above its statement, and put the variable in its place.

        Args:
            module: the file.
            node: the expression.
            wanted: the name of the variable if that is free.
            below: a template of lines to stand below the assignment.

        Returns:
            The name of the variable.
        """
        statement = blocks.statement_of(module, node)
        name = self._free(module, statement, wanted)
        below = self._translation.code(module, below)
        self._translation.do(module, *taken_out(node, statement, name, below=below))
        return name

    def has(self, statement: ast.stmt) -> bool:
        """Whether a variable is assigned above a statement."""
        return statement in self._taken

    def _free(self, module: Module, statement: ast.stmt, wanted: str) -> str:
        # The variable is read in that statement alone: another one may have the same.
        taken = self._taken.setdefault(statement, set())
        names = names_of(module)
        candidates = [wanted, *(f"{wanted}_{number}" for number in range(2, 100))]
        name = next(item for item in candidates if item not in taken and not names.is_taken(item))
        taken.add(name)
        return name
