"""Applying actions to a file: the only place that changes text.

The edits are carried out on the LibCST tree of the text, found by position. What no edit names stays byte for byte as
it was, save for the indentation of statements that move into a block.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.notebook import TextCell, joined
from amp_rules.source.text import SourceError
from amp_rules.text.abridge import abridged
from amp_rules.text.actions import Action, Remove, Unwrap, Wrap, node_of
from amp_rules.text.conditions import joined as joined_conditions
from amp_rules.text.decorating import Decorating
from amp_rules.text.import_names import ImportNames
from amp_rules.text.indentation import Indentation
from amp_rules.text.parameters import Parameters
from amp_rules.text.places import Places
from amp_rules.text.replacing import Replacing
from amp_rules.text.suites import Suites

_LINE_END = re.compile(r"[ \t]*(?:\r?\n)?")


def apply(module: Module, actions: Sequence[Action]) -> str:
    """Return the module's text with the actions applied; in a notebook, each within its cell.

    Raises:
        SourceError: LibCST cannot read the text, or would change lines that no action names.
    """
    actions = joined_conditions(module, actions)
    if not module.cells:
        short = abridged(module, *_touched(module, actions))
        if short is not None:
            config = cst.PartialParserConfig(default_indent=short.indent, default_newline=short.newline)
            try:
                return short.restored(_rewritten(module, short.text, actions, config=config))
            except SourceError:
                pass  # LibCST may keep as it is what it does not where statements around it are missing.
        return _rewritten(module, module.source.text, actions)
    by_cell: defaultdict[int | None, list[Action]] = defaultdict(list)
    for action in actions:
        cell = module.cell_of(node_of(action))
        if isinstance(action, Wrap) and module.cell_of(action.last) != cell:
            raise RuntimeError(f"{module.path}: a block would span the cells {cell} and {module.cell_of(action.last)}")
        by_cell[cell].append(action)
    return joined(
        [
            (
                cell.number,
                _rewritten(module, cell.text, by_cell[cell.number], cell) if by_cell[cell.number] else cell.text,
            )
            for cell in module.cells
        ]
    )


def _touched(module: Module, actions: Sequence[Action]) -> tuple[list[ast.AST], list[ast.stmt]]:
    """The nodes that actions name, and the statements that they move as a whole."""
    whole: list[ast.stmt] = []
    for action in actions:
        if isinstance(action, Wrap):
            where = blocks.place(module, action.first)
            whole += where.suite[where.index : where.suite.index(action.last) + 1]
        elif isinstance(action, (Remove, Unwrap)):
            whole.append(action.statement)
    return [node_of(action) for action in actions], whole


def _rewritten(
    module: Module,
    text: str,
    actions: Sequence[Action],
    cell: TextCell | None = None,
    config: cst.PartialParserConfig | None = None,
) -> str:
    """Return ``text``, which is the module, abridged, or one cell of a notebook, with the actions applied."""
    number = cell.number if cell else None
    text, end = _blank_end(text)
    try:
        tree = (
            cst.parse_module(text, config or cst.PartialParserConfig()) if cell is None else _parsed_cell(module, text)
        )
        same = tree.code
    except cst.ParserSyntaxError as error:
        raise SourceError(module.path, f"cannot be rewritten: {error.message}", error.raw_line, cell=number) from None
    except RecursionError:
        # LibCST writes a tree out level by level, by calls within calls.
        raise SourceError(module.path, "nested too deeply to be rewritten") from None
    if same != text:
        # It loses the form feeds that some old files have at the head of a line.
        line = _first_difference(text, same)
        reason = "a form feed stands at the head of a line" if "\f" in text else "LibCST does not keep a line as it is"
        raise SourceError(module.path, f"cannot be rewritten: {reason}; remove it first", line, cell=number)
    wrapper = MetadataWrapper(tree, unsafe_skip_copy=True)
    try:
        positions = wrapper.resolve(PositionProvider)
        above = cell.start - 1 if cell else 0
        lines = _Lines(positions, *_touched(module, actions), above)
        editor = _Editor(actions, Places(module, positions, above), Indentation(module, above), lines)
        changed = wrapper.module.visit(editor).code
    except RecursionError:
        # LibCST needs several frames for each level of an expression.
        raise SourceError(module.path, "nested too deeply to be rewritten") from None
    missed = editor.missed()
    if missed:
        raise RuntimeError(f"{module.path}: {len(missed)} edits found no place, the first at line {missed[0]}")
    return changed + end


def _blank_end(text: str) -> tuple[str, str]:
    """Split off the blank lines at the very end: LibCST does not keep all of them where some hold spaces."""
    head = text.rstrip(" \t\r\n")
    # It takes lone carriage returns at the very end for nothing.
    line = _LINE_END.match(text, len(head))
    kept = text[: line.end()] if line is not None else head
    return kept, text[len(kept) :]


def _first_difference(text: str, other: str) -> int:
    """The number of the first line in which two texts differ."""
    rows = zip(text.split("\n"), other.split("\n"), strict=False)
    return next((number for number, (row, changed) in enumerate(rows, 1) if row != changed), 1)


def _parsed_cell(module: Module, text: str) -> cst.Module:
    """Parse one cell; the comments at its head belong to its first statement, as they would in the middle of a file."""
    tree = cst.parse_module(text)
    if not any(line[:1] in (" ", "\t") for line in text.splitlines()):
        tree = tree.with_changes(default_indent=_indent(module) or tree.default_indent)
    if not tree.body or not tree.header:
        return tree
    first = tree.body[0]
    first = first.with_changes(leading_lines=[*tree.header, *getattr(first, "leading_lines", ())])
    return tree.with_changes(header=(), body=[first, *tree.body[1:]])


def _indent(module: Module) -> str | None:
    """The indentation of the first block of the file."""
    for node in ast.walk(module.tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.stmt) and isinstance(body, list) and body[0].lineno > node.lineno:
            (line, column), (_, outer) = module.start(body[0]), module.start(node)
            return module.lines[line - 1][outer:column] or None
    return None


class _Lines:
    """The lines that actions name, to pass over the statements between them: most of a file, most of the time."""

    def __init__(
        self, positions: Mapping[cst.CSTNode, CodeRange], named: list[ast.AST], whole: list[ast.stmt], above: int
    ) -> None:
        self._positions = positions
        ranges = sorted(
            (_first_line(node) - above, (getattr(node, "end_lineno", None) or node.lineno) - above)
            for node in (*named, *whole)
            if hasattr(node, "lineno")
        )
        self._starts = [start for start, _ in ranges]
        # The last line of all that begin up to here: a range that holds others ends after them.
        self._ends = list(accumulate((end for _, end in ranges), max))

    def touch(self, statement: cst.BaseStatement) -> bool:
        """Whether an action names something within a statement."""
        place = self._positions[statement]
        first = place.start.line
        for decorator in getattr(statement, "decorators", ()):
            first = min(first, self._positions[decorator].start.line)
        begun = bisect_right(self._starts, place.end.line)
        return begun > 0 and self._ends[begun - 1] >= first


def _first_line(node: ast.AST) -> int:
    decorators = getattr(node, "decorator_list", None) or [node]
    return min(int(node.lineno), int(decorators[0].lineno))  # type: ignore[attr-defined]


class _Editor(cst.CSTTransformer):
    """Walks through the tree once, and hands each node to those who carry out the actions on it."""

    def __init__(self, actions: Sequence[Action], places: Places, indentation: Indentation, lines: _Lines) -> None:
        super().__init__()
        self._lines = lines
        self._actions = list(actions)
        self._done: set[int] = set()
        self._replacing = Replacing(actions, places, self._done)
        self._indentation = indentation
        self._suites = Suites(actions, places, indentation, self._done)
        self._decorating = Decorating(actions, places, self._done)
        self._parameters = Parameters(actions, places, self._done)
        self._import_names = ImportNames(actions, places, self._done)

    def missed(self) -> list[int]:
        """Lines of actions that found no node."""
        return [node_of(action).lineno for action in self._actions if id(action) not in self._done]

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.BaseStatement) and not self._lines.touch(node):
            return False
        return super().on_visit(node)

    def on_visit_attribute(self, node: cst.CSTNode, attribute: str) -> None:
        """Nothing is asked of single attributes, and LibCST would look for a method for each."""

    def on_leave_attribute(self, original_node: cst.CSTNode, attribute: str) -> None:
        """As above."""

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> object:  # type: ignore[override]
        return self._replacing.left(original_node, super().on_leave(original_node, updated_node))

    def visit_Module(self, node: cst.Module) -> None:
        self._indentation.default = node.default_indent

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        body = self._suites.suite(original_node.body, updated_node.body)
        return updated_node.with_changes(body=body) if body is not None else updated_node

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        return self._suites.block(original_node, updated_node)

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        return self._suites.one_line(original_node, updated_node)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If:
        return self._suites.branch(original_node, updated_node)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        return self._decorating.decorated(original_node, self._parameters.extended(original_node, updated_node))

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        return self._decorating.decorated(original_node, updated_node)

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> cst.ImportFrom:
        names = self._import_names.names_left(original_node, updated_node.names)
        return updated_node if names is None else updated_node.with_changes(names=names)

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        names = self._import_names.names_left(original_node, updated_node.names)
        return updated_node if names is None else updated_node.with_changes(names=names)
