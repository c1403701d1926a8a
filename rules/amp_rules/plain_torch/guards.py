"""Statements that only the first process runs."""

from __future__ import annotations

import ast

from amp_rules.plain_torch.hoisting import Hoisting
from amp_rules.plain_torch.translation import Translation
from amp_rules.roles.skippable import Skippable
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.text.actions import Wrap


class Guards:
    """Collects the statements; those that stand beside each other share a condition."""

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._skippable = Skippable(translation.program)
        self._found: dict[ast.stmt, Module] = {}
        self._lifted: set[ast.stmt] = set()
        translation.at_end(self._write)

    def add(self, module: Module, statement: ast.stmt, *, lifts: bool = False) -> None:
        """Leave a statement to the first process.

        Args:
            module: the file.
            statement: the statement.
            lifts: whether a loop or condition around it that does nothing else is left to that process as a whole.
        """
        self._found[statement] = module
        if lifts:
            self._lifted.add(statement)

    def _write(self) -> None:
        pending = [statement for statement in self._found if statement in self._lifted]
        while pending:
            around = self._lift(pending.pop())
            if around is not None:
                pending.append(around)
        ordered = sorted(self._found, key=lambda item: (item.lineno, item.col_offset))
        for module in dict.fromkeys(self._found.values()):
            statements = [statement for statement in ordered if self._found[statement] is module]
            for first, last in self._groups(module, statements):
                header = self._translation.code(module, "if {RANK} == 0:")
                self._translation.do(module, Wrap(first, last, header))

    def _groups(self, module: Module, statements: list[ast.stmt]) -> list[tuple[ast.stmt, ast.stmt]]:
        """The first and the last of those that stand beside each other with nothing assigned between them."""
        hoisting = self._translation.part(Hoisting)
        found: list[tuple[ast.stmt, ast.stmt]] = []
        for statement in statements:
            where = blocks.place(module, statement)
            above = where.suite[where.index - 1] if where.index else None
            if found and above is found[-1][1] and not hoisting.has(statement):
                found[-1] = found[-1][0], statement
            else:
                found.append((statement, statement))
        return found

    def _lift(self, statement: ast.stmt) -> ast.stmt | None:
        """The block around a statement, if it goes to the first process as a whole."""
        module = self._found.get(statement)
        parent = module.parents[statement] if module is not None else None
        if module is None or not isinstance(parent, (ast.For, ast.If)) or parent.orelse:
            return None
        above = module.parents[parent]
        if isinstance(above, ast.If) and above.orelse == [parent]:
            return None
        scope = self._translation.program.flow.scopes.get(blocks.body_of(module, parent))
        if scope is None or not set(parent.body) <= self._lifted:
            return None
        if not self._skippable.alone(module, scope, [parent]):
            return None
        for item in parent.body:
            del self._found[item]
        self._found[parent] = module
        self._lifted.add(parent)
        return parent
