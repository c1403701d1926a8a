"""Finding in the LibCST tree what actions name by :mod:`ast` nodes: both have a place in the same text."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import libcst as cst
from libcst.metadata import CodeRange

from amp_rules.source.modules import Module

Place = tuple[int, int]
"""Line and column."""

Extent = tuple[Place, Place]
"""Where something begins and ends."""


class Places:
    """Where nodes stand: those of :mod:`ast`, which actions name, and those of the LibCST tree of the same text.

    Both count lines from 1 and columns in code points from 0, within the text that is edited.
    """

    def __init__(self, module: Module, positions: Mapping[cst.CSTNode, CodeRange], above: int = 0) -> None:
        self._module = module
        self._positions = positions
        self._above = above  # so many lines of the file stand above the text that is edited

    # ---- of what actions name ----------------------------------------------------------------------------------

    def of_expression(self, node: ast.expr) -> Extent:
        """Where an expression begins and ends."""
        return self._moved(self._module.start(node)), self._moved(self._module.end(node))

    def of_statement(self, statement: ast.stmt) -> Place:
        """Where a statement begins, with its decorators."""
        decorators = getattr(statement, "decorator_list", [])
        if decorators:
            line, column = self._moved(self._module.start(decorators[0]))
            return line, column - 1
        return self._moved(self._module.start(statement))

    def of_definition(self, definition: ast.stmt) -> Place:
        """Where a definition begins, below its decorators."""
        return self._moved(self._module.start(definition))

    def _moved(self, place: Place) -> Place:
        return place[0] - self._above, place[1]

    # ---- of the tree -------------------------------------------------------------------------------------------

    def whole(self, node: cst.CSTNode) -> CodeRange | None:
        """Where a node begins and ends to LibCST."""
        return self._positions.get(node)

    def start(self, node: cst.CSTNode) -> Place | None:
        """Where a node begins."""
        where = self._positions.get(node)
        return (where.start.line, where.start.column) if where is not None else None

    def start_of_row(self, node: cst.CSTNode) -> Place | None:
        """Where the row of a suite begins, to :meth:`of_statement`."""
        if isinstance(node, cst.SimpleStatementLine) and node.body:
            return self.start(node.body[0])
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)) and node.decorators:
            return self.start(node.decorators[0])
        return self.start(node)

    def extent(self, node: cst.BaseExpression) -> Extent | None:
        """Where an expression begins and ends to :mod:`ast`: the parentheses of a tuple or a generator are its own."""
        first, last = self._positions.get(node), self._positions.get(node)
        if isinstance(node, (cst.Tuple, cst.GeneratorExp)) and node.lpar:
            first, last = self._positions.get(node.lpar[-1]), self._positions.get(node.rpar[0])
        if first is None or last is None:
            return None
        return (first.start.line, first.start.column), (last.end.line, last.end.column)


_KINDS: dict[type[ast.expr], type[cst.BaseExpression]] = {
    ast.Call: cst.Call,
    ast.Name: cst.Name,
    ast.Attribute: cst.Attribute,
    ast.Subscript: cst.Subscript,
}


def same_kind(node: ast.expr, other: cst.BaseExpression) -> bool:
    """Whether two expressions at one place can be the same one: ``f`` begins and ends where its parentheses do."""
    kind = _KINDS.get(type(node))
    return kind is None or isinstance(other, kind)
