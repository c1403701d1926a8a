"""One parsed file, and places in it as people count them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from amp_rules.source import notebook
from amp_rules.source.spans import Position, Span
from amp_rules.source.syntax import children, walk
from amp_rules.source.text import SourceFile, parse_source

_NEWLINE = re.compile(r"\r\n|\r|\n")


class Module:
    """One parsed file.

    Attributes:
        path: the file, absolute.
        source: its text and encoding.
        tree: its syntax tree; the nodes are the keys of everything the model knows.
        is_entry: whether it is run as ``__main__``.
        kept: what others found out about the text alone, for all programs that the file is part of.
        origins: of a draft, the line on disk that each of its lines stands for.
    """

    def __init__(self, source: SourceFile, tree: ast.Module, is_entry: bool) -> None:
        self.path = source.path
        self.source = source
        self.tree = tree
        self.is_entry = is_entry
        self.kept: dict[str, Any] = {}
        self.origins: Sequence[int] = ()

    def as_entry(self) -> Module:
        """The same file when it is run itself."""
        found = Module(self.source, self.tree, is_entry=True)
        found.kept, found.origins = self.kept, self.origins
        found.nodes, found.parents = self.nodes, self.parents
        return found

    def __repr__(self) -> str:
        return f"Module({self.path.name})"

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text, as Python counts them, without line ends."""
        return _NEWLINE.split(self.source.text)

    def line_on_disk(self, line: int) -> int:
        """What a line is called in a sentence: of a draft, the line of the file that the user has."""
        return self.origins[min(line, len(self.origins)) - 1] if self.origins else line

    @cached_property
    def cells(self) -> tuple[notebook.TextCell, ...]:
        """The cells of a notebook; none of any other file."""
        return notebook.cells_of(self.source)

    def cell_of(self, node: ast.AST) -> int | None:
        """The number of the notebook's cell that ``node`` begins in."""
        cell = notebook.cell_at(self.cells, getattr(node, "lineno", 1)) if self.cells else None
        return cell.number if cell else None

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the file, level by level."""
        return list(walk(self.tree))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The syntactic parent of each node."""
        found: dict[ast.AST, ast.AST] = {}
        for node in self.nodes:
            for child in children(node):
                found[child] = node
        return found

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the parents of ``node``, the nearest first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def _column(self, line: int, byte_column: int) -> int:
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        if text.isascii():
            return byte_column
        return len(text.encode("utf-8")[:byte_column].decode("utf-8", "replace"))

    def start(self, node: ast.AST) -> tuple[int, int]:
        """Line (from 1) and column (from 0, in code points) where ``node`` begins."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return line, self._column(line, column)

    def end(self, node: ast.AST) -> tuple[int, int]:
        """Line (from 1) and column (from 0, in code points) just past ``node``."""
        line, column = getattr(node, "end_lineno", None), getattr(node, "end_col_offset", None)
        if line is None or column is None:
            return self.start(node)
        return line, self._column(line, column)

    def span(self, node: ast.AST) -> Span:
        """The range of ``node`` as people count it: lines and columns from 1."""
        (line, column), (end_line, end_column) = self.start(node), self.end(node)
        return Span(Position(line, column + 1), Position(end_line, end_column + 1))

    def text(self, node: ast.AST) -> str:
        """The node's own source, on one line and shortened when it is long."""
        (line, column), (end_line, end_column) = self.start(node), self.end(node)
        rows = self.lines[line - 1 : end_line]
        if not rows:
            return ""
        if len(rows) == 1:
            found = rows[0][column:end_column]
        else:
            found = " ".join([rows[0][column:], *(row.strip() for row in rows[1:-1]), rows[-1][:end_column].strip()])
        return found if len(found) <= 80 else found[:77] + "..."

    def code(self, node: ast.AST) -> str:
        """The exact source of an expression; of several lines, in one."""
        (line, column), (end_line, end_column) = self.start(node), self.end(node)
        return self.lines[line - 1][column:end_column] if line == end_line else ast.unparse(node)


def parse(source: SourceFile, *, is_entry: bool = False) -> Module:
    """Parse a file.

    Raises:
        SourceError: the text is not Python that this interpreter understands.
    """
    return Module(source, parse_source(source), is_entry)
