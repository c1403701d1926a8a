"""Applying edits to a file: the only place that changes text.

Rules decide on :mod:`ast` nodes; the edits are carried out on the LibCST tree of the same text, found by
position. What no edit names stays byte for byte as it was, save for the indentation of statements that move
into a block."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from amp_rules.abridge import abridged
from amp_rules.program import blocks
from amp_rules.program.modules import Module
from amp_rules.program.notebook import TextCell, joined
from amp_rules.program.source import SourceError

ExpressionEdit = Callable[[cst.BaseExpression], cst.BaseExpression]
Place = tuple[int, int]
_Definition = TypeVar("_Definition", cst.FunctionDef, cst.ClassDef)


@dataclass(frozen=True)
class Replace:
    """Replace an expression by what the function makes of it."""

    node: ast.expr
    edit: ExpressionEdit


@dataclass(frozen=True)
class Insert:
    """Put lines before or after a statement.

    ``order`` sorts several insertions at one place; ``gap`` asks for a blank line between them and the statement below.
    """

    statement: ast.stmt
    code: str
    after: bool = False
    order: int = 0
    gap: bool = False


@dataclass(frozen=True)
class Wrap:
    """Put a run of statements of one suite into a block such as ``with amp.autocast():``."""

    first: ast.stmt
    last: ast.stmt
    header: str


@dataclass(frozen=True)
class Remove:
    """Take a statement out. A suite that it leaves empty gets a ``pass``.

    ``keep_comments`` leaves the comments above it to the statement below.
    """

    statement: ast.stmt
    keep_comments: bool = False


@dataclass(frozen=True)
class Unwrap:
    """Put the statements of one or more suites of a compound statement in its place.

    A suite is named as in :mod:`ast`: ``body``, ``orelse``, ``finalbody``, or ``handler`` for the first one.
    """

    statement: ast.stmt
    suites: tuple[str, ...] = ("body",)


@dataclass(frozen=True)
class Decorate:
    """Put a decorator directly above a function or a class, below those that it has; ``code`` is without ``@``."""

    definition: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    code: str


@dataclass(frozen=True)
class EditNames:
    """Take some names out of an import that binds others too, or ask for them by another name.

    Each is named as it is in the package; a new name of None takes it out.
    """

    statement: ast.Import | ast.ImportFrom
    names: Mapping[str, str | None]


Action = Replace | Insert | Wrap | Remove | Unwrap | Decorate | EditNames


# ---- expression edits --------------------------------------------------------------------------------------


def call_with(function: str, *more: str) -> ExpressionEdit:
    """``x`` becomes ``function(x, more...)``."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(cst.parse_expression(f"{function}({', '.join(['x', *more])})"), cst.Call)
        bare = node.with_changes(lpar=[], rpar=[]) if _can_drop_parentheses(node) else node
        return call.with_changes(args=[call.args[0].with_changes(value=bare), *call.args[1:]])

    return edit


def substitute(code: str) -> ExpressionEdit:
    """The expression becomes ``code``."""
    return lambda node: cst.parse_expression(code)


def change_function(code: str) -> ExpressionEdit:
    """``f(a, b)`` becomes ``code(a, b)``."""
    return lambda node: cst.ensure_type(node, cst.Call).with_changes(func=cst.parse_expression(code))


def add_keyword(code: str) -> ExpressionEdit:
    """``f(a)`` becomes ``f(a, code)``."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        added = cst.ensure_type(cst.parse_expression(f"f({code})"), cst.Call).args[0]
        arguments = list(call.args)
        if arguments:
            last = arguments[-1]
            separator = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            if len(arguments) > 1 and isinstance(arguments[-2].comma, cst.Comma):
                separator = arguments[-2].comma
            if isinstance(last.comma, cst.Comma):
                # ``f(\n    a,\n)``: the new argument gets a line and a comma of its own.
                if len(arguments) == 1:
                    separator = cst.Comma(whitespace_after=call.whitespace_before_args)
                added = added.with_changes(comma=last.comma)
            else:
                added = added.with_changes(whitespace_after_arg=last.whitespace_after_arg)
            arguments[-1] = last.with_changes(comma=separator, whitespace_after_arg=cst.SimpleWhitespace(""))
        return call.with_changes(args=[*arguments, added])

    return edit


def _can_drop_parentheses(node: cst.BaseExpression) -> bool:
    """Whether the parentheses around an expression say nothing once it is an argument of its own."""
    if not getattr(node, "lpar", None) or isinstance(node, (cst.Tuple, cst.GeneratorExp, cst.NamedExpr, cst.Yield)):
        return False
    return "\n" not in cst.Module([]).code_for_node(node)


# ---- application -------------------------------------------------------------------------------------------


def apply(module: Module, actions: Sequence[Action]) -> str:
    """Return the module's text with the actions applied; in a notebook, each within its cell.

    Raises:
        SourceError: LibCST cannot read the text, or would change lines that no action names.
    """
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
        cell = module.cell_of(_node(action))
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
    return [_node(action) for action in actions], whole


def _rewritten(
    module: Module,
    text: str,
    actions: Sequence[Action],
    cell: TextCell | None = None,
    config: cst.PartialParserConfig | None = None,
) -> str:
    """Return ``text``, which is the module, abridged, or one cell of a notebook, with the actions applied."""
    number = cell.number if cell else None
    # LibCST takes lone carriage returns at the very end for nothing.
    end = text[len(text.rstrip("\r")) :]
    text = text.removesuffix(end)
    try:
        tree = (
            cst.parse_module(text, config or cst.PartialParserConfig()) if cell is None else _parsed_cell(module, text)
        )
        same = tree.code
    except cst.ParserSyntaxError as error:
        raise SourceError(module.path, f"cannot be rewritten: {error.message}", error.raw_line, cell=number) from None
    except RecursionError:
        raise SourceError(module.path, "nested too deeply to be rewritten") from None
    if same != text:
        # It loses the form feeds that some old files have at the head of a line.
        line = _first_difference(text, same)
        reason = "a form feed stands at the head of a line" if "\f" in text else "LibCST does not keep a line as it is"
        raise SourceError(module.path, f"cannot be rewritten: {reason}; remove it first", line, cell=number)
    wrapper = MetadataWrapper(tree, unsafe_skip_copy=True)
    try:
        positions = wrapper.resolve(PositionProvider)
        editor = _Editor(module, actions, positions, cell.start - 1 if cell else 0)
        changed = wrapper.module.visit(editor).code
    except RecursionError:
        # LibCST needs several frames for each level of an expression.
        raise SourceError(module.path, "nested too deeply to be rewritten") from None
    missed = editor.missed()
    if missed:
        raise RuntimeError(f"{module.path}: {len(missed)} edits found no place, the first at line {missed[0]}")
    return changed + end


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


def _node(action: Action) -> ast.stmt | ast.expr:
    """The node that an action names first."""
    if isinstance(action, Replace):
        return action.node
    if isinstance(action, Wrap):
        return action.first
    return action.definition if isinstance(action, Decorate) else action.statement


class _Editor(cst.CSTTransformer):
    """Carries out actions, found by the position of their nodes."""

    def __init__(self, module: Module, actions: Sequence[Action], positions: object, above: int = 0) -> None:
        super().__init__()
        self._module = module
        self._above = above  # so many lines of the file stand above the text that is edited
        self._positions: dict[cst.CSTNode, CodeRange] = positions  # type: ignore[assignment]
        self._replacements: dict[tuple[Place, Place], list[Replace]] = defaultdict(list)
        self._inserts: dict[Place, list[Insert]] = defaultdict(list)
        self._wraps: dict[Place, list[Wrap]] = defaultdict(list)
        self._removals: set[Place] = set()
        self._unwraps: dict[Place, Unwrap] = {}
        self._decorations: dict[Place, list[Decorate]] = defaultdict(list)
        self._imports: dict[Place, list[EditNames]] = defaultdict(list)
        self._carried: list[cst.EmptyLine] = []
        self._homeless: list[cst.Comment] = []
        self._done: set[int] = set()
        self._actions = list(actions)
        for action in actions:
            if isinstance(action, Replace):
                place = self._moved(module.start(action.node)), self._moved(module.end(action.node))
                self._replacements[place].append(action)
            elif isinstance(action, Insert):
                self._inserts[self._start(action.statement)].append(action)
            elif isinstance(action, Wrap):
                self._wraps[self._start(action.first)].append(action)
            elif isinstance(action, Unwrap):
                self._unwraps[self._start(action.statement)] = action
            elif isinstance(action, Decorate):
                self._decorations[self._moved(module.start(action.definition))].append(action)
            elif isinstance(action, EditNames):
                self._imports[self._start(action.statement)].append(action)
            else:
                self._removals.add(self._start(action.statement))
        self._touched = {*self._inserts, *self._wraps, *self._removals, *self._unwraps}
        self._touched |= {self._start(wrap.last) for wraps in self._wraps.values() for wrap in wraps}

    def missed(self) -> list[int]:
        """Lines of actions that found no node."""
        return [_node(action).lineno for action in self._actions if id(action) not in self._done]

    def _moved(self, place: Place) -> Place:
        return place[0] - self._above, place[1]

    def _start(self, statement: ast.stmt) -> Place:
        decorators = getattr(statement, "decorator_list", [])
        if decorators:
            line, column = self._moved(self._module.start(decorators[0]))
            return line, column - 1
        return self._moved(self._module.start(statement))

    # ---- expressions ---------------------------------------------------------------------------------------

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> object:  # type: ignore[override]
        updated = super().on_leave(original_node, updated_node)
        if (
            self._replacements
            and isinstance(original_node, cst.BaseExpression)
            and isinstance(updated, cst.BaseExpression)
        ):
            key = self._extent(original_node)
            if key is not None:
                for replacement in self._replacements.get(key, ()):
                    if not _same_kind(replacement.node, original_node):
                        continue
                    self._done.add(id(replacement))
                    edited = replacement.edit(updated)
                    self._homeless += _lost_comments(updated, edited)
                    updated = edited
            if isinstance(original_node, cst.Call) and isinstance(updated, cst.Call):
                updated = self._realigned(original_node, updated)
        if self._homeless and isinstance(updated, cst.CSTNode) and hasattr(updated, "leading_lines"):
            # What was said inside of an expression that is no more goes above its statement.
            rows = [cst.EmptyLine(comment=comment) for comment in self._homeless]
            self._homeless = []
            updated = updated.with_changes(leading_lines=[*updated.leading_lines, *rows])
        return updated

    def _extent(self, node: cst.BaseExpression) -> tuple[Place, Place] | None:
        """Where an expression begins and ends to :mod:`ast`: the parentheses of a tuple or a generator are its own."""
        first, last = self._positions.get(node), self._positions.get(node)
        if isinstance(node, (cst.Tuple, cst.GeneratorExp)) and node.lpar:
            first, last = self._positions.get(node.lpar[-1]), self._positions.get(node.rpar[0])
        if first is None or last is None:
            return None
        return (first.start.line, first.start.column), (last.end.line, last.end.column)

    def _realigned(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        """Arguments that stood below the first one still do when the function's name has another length."""
        function = self._positions.get(original.func)
        rows = [where for item in original.args if (where := self._positions.get(item)) is not None]
        if function is None or not rows or rows[0].start.line != function.end.line:
            return updated
        heads = {where.start.line: where.start.column for where in reversed(rows)}
        below = [column for line, column in heads.items() if line > function.end.line]
        shift = len(_last_row(updated.func)) - len(_last_row(original.func))
        if not shift or not below or set(below) != {rows[0].start.column}:
            return updated
        shifted = [item.visit(_Shift(shift)) for item in updated.args]
        return updated.with_changes(args=[item for item in shifted if isinstance(item, cst.Arg)])

    # ---- statements ----------------------------------------------------------------------------------------

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        body = self._suite(original_node.body, updated_node.body)
        return updated_node.with_changes(body=body) if body is not None else updated_node

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        body = self._suite(original_node.body, updated_node.body)
        if body is None:
            return updated_node
        if body and self._statement_place(original_node.body[0]) in self._removals:
            body[0] = _without_blank_lines_above(body[0])
        return updated_node.with_changes(body=body or [cst.parse_statement("pass\n")])

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        return self._decorated(original_node, updated_node)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        return self._decorated(original_node, updated_node)

    def _decorated(self, original: _Definition, updated: _Definition) -> _Definition:
        actions = self._decorations.get(self._place(original) or (0, 0))
        if not actions:
            return updated
        self._done.update(id(item) for item in actions)
        added: list[cst.Decorator] = [cst.Decorator(cst.parse_expression(item.code)) for item in actions]
        # A comment below the other decorators stays where it is.
        added[0] = added[0].with_changes(leading_lines=updated.lines_after_decorators)
        return updated.with_changes(decorators=[*updated.decorators, *added], lines_after_decorators=())

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> cst.ImportFrom:
        names = self._names_left(original_node, updated_node.names)
        return updated_node if names is None else updated_node.with_changes(names=names)

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        names = self._names_left(original_node, updated_node.names)
        return updated_node if names is None else updated_node.with_changes(names=names)

    def _names_left(
        self, original: cst.ImportFrom | cst.Import, names: Sequence[cst.ImportAlias] | cst.ImportStar
    ) -> list[cst.ImportAlias] | None:
        """The names of an import as they are wanted; None when all stay."""
        where = self._positions.get(original)
        actions = self._imports.get((where.start.line, where.start.column), ()) if where is not None else ()
        if not actions or isinstance(names, cst.ImportStar):
            return None
        self._done.update(id(action) for action in actions)
        wanted = {old: new for action in actions for old, new in action.names.items()}
        kept = []
        for item in names:
            new = wanted.get(item.evaluated_name, item.evaluated_name)
            if new is not None:
                kept.append(item if new == item.evaluated_name else item.with_changes(name=cst.Name(new)))
        kept[-1] = kept[-1].with_changes(comma=names[-1].comma)
        return kept

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If:
        """An ``elif`` stands in no suite: what happens to it happens here."""
        if not isinstance(original_node.orelse, cst.If) or not isinstance(updated_node.orelse, cst.If):
            return updated_node
        place = self._place(original_node.orelse)
        branch = updated_node.orelse
        if place in self._removals:
            self._finish_removal(place)
            return updated_node.with_changes(orelse=branch.orelse)
        if place in self._unwraps:
            unwrap = self._unwraps[place]
            self._done.add(id(unwrap))
            if unwrap.suites == ("orelse",):
                return updated_node.with_changes(orelse=branch.orelse)
            return updated_node.with_changes(orelse=cst.Else(branch.body, leading_lines=branch.leading_lines))
        return updated_node

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        if not any(self._place(item) in self._touched for item in original_node.body):
            return updated_node
        # ``if x: y()`` on one line has no room for more: it becomes a block.
        lines = [
            cst.SimpleStatementLine([item.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])
            for item in updated_node.body
        ]
        body = self._suite(original_node.body, lines)
        return cst.IndentedBlock(body if body is not None else lines, header=updated_node.trailing_whitespace)

    def _place(self, node: cst.CSTNode) -> Place | None:
        where = self._positions.get(node)
        return (where.start.line, where.start.column) if where is not None else None

    def _suite(self, original: Sequence[cst.CSTNode], updated: Sequence[cst.CSTNode]) -> list[cst.BaseStatement] | None:
        """The suite with its insertions, wraps and removals; None when it has none."""
        rows: list[tuple[Place | None, cst.BaseStatement]] = []
        concerned = False
        for old, new in zip(original, updated, strict=True):
            place = self._statement_place(old)
            if (
                isinstance(old, cst.SimpleStatementLine)
                and isinstance(new, cst.SimpleStatementLine)
                and len(old.body) > 1
            ):
                places = [self._place(item) for item in old.body]
                if any(item in self._touched for item in places):
                    concerned = True
                    rows.extend(zip(places, _split(new), strict=True))
                    continue
            concerned = concerned or place in self._touched
            rows.append((place, new))  # type: ignore[arg-type]
        if not concerned:
            return None
        return self._rebuild(rows)

    def _statement_place(self, node: cst.CSTNode) -> Place | None:
        if isinstance(node, cst.SimpleStatementLine) and node.body:
            return self._place(node.body[0])
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)) and node.decorators:
            return self._place(node.decorators[0])
        return self._place(node)

    def _rebuild(self, rows: list[tuple[Place | None, cst.BaseStatement]]) -> list[cst.BaseStatement]:
        index_of = {place: index for index, (place, _) in enumerate(rows) if place is not None}
        spans: list[tuple[int, int, Wrap]] = []
        for place, index in index_of.items():
            for wrap in self._wraps.get(place, ()):
                end = index_of.get(self._start(wrap.last))
                if end is not None and end >= index:
                    spans.append((index, end, wrap))
                    self._done.add(id(wrap))
        spans.sort(key=lambda span: (span[0], -span[1]))
        return self._emit(rows, 0, len(rows) - 1, spans, None)

    def _emit(
        self,
        rows: list[tuple[Place | None, cst.BaseStatement]],
        first: int,
        last: int,
        spans: list[tuple[int, int, Wrap]],
        inside: Wrap | None,
    ) -> list[cst.BaseStatement]:
        found: list[cst.BaseStatement] = []
        index = first
        while index <= last:
            span = next((item for item in spans if item[0] == index and item[1] <= last), None)
            if span is None:
                found.extend(self._row(*rows[index]))
                index += 1
                continue
            start, end, wrap = span
            remaining = [item for item in spans if item is not span]
            # What goes before or after a statement at the edge of a block stays outside of it.
            before, after = self._before(rows[start][0]), self._after(rows[end][0])
            block = self._emit(rows, start, end, remaining, wrap)
            whole = self._put_above(before, _block(wrap.header, block), rows[start][0])
            found.extend([*before, whole, *after])
            index = end + 1
        return found

    def _row(self, place: Place | None, statement: cst.BaseStatement) -> list[cst.BaseStatement]:
        kept: list[cst.BaseStatement] = []
        if self._carried and hasattr(statement, "leading_lines"):
            statement = statement.with_changes(leading_lines=[*self._carried, *statement.leading_lines])
            self._carried = []
        if place in self._removals:
            lines = list(getattr(statement, "leading_lines", ()))
            if not self._finish_removal(place):
                lines = _apart(lines)
            self._carried = lines if any(line.comment is not None for line in lines) else []
        elif place in self._unwraps:
            unwrap = self._unwraps[place]
            self._done.add(id(unwrap))
            kept = _inner(statement, unwrap.suites)
            if kept and place is not None and place[1] == 0:
                kept[0] = _with_two_blank_lines(kept[0])
        else:
            kept = [statement]
        before = self._before(place)
        if kept:
            kept[0] = self._put_above(before, kept[0], place)
        elif before and hasattr(statement, "leading_lines"):
            self._carried = []
            # The new lines stand for the old statement, under its comments.
            before[0] = before[0].with_changes(leading_lines=statement.leading_lines)
            last = before[-1]
            if isinstance(statement, cst.SimpleStatementLine) and isinstance(last, cst.SimpleStatementLine):
                if statement.trailing_whitespace.comment is not None:
                    before[-1] = last.with_changes(trailing_whitespace=statement.trailing_whitespace)
        return [*before, *kept, *self._after(place)]

    def _put_above(
        self, before: list[cst.BaseStatement], kept: cst.BaseStatement, place: Place | None
    ) -> cst.BaseStatement:
        """Hand the blank lines above a statement to the new lines, which are changed in place; the comment stays."""
        if not before or not hasattr(kept, "leading_lines"):
            return kept
        lines = list(kept.leading_lines)
        blank = next((index for index, line in enumerate(lines) if line.comment is not None), len(lines))
        above, rest = lines[:blank], lines[blank:]
        if self._wants_gap(place):
            is_definition = isinstance(kept, (cst.FunctionDef, cst.ClassDef))
            # Style of its own where there is one: the first statement of a file has no blank lines above it yet.
            at_least = 2 if place is not None and place[1] == 0 and not above else 1
            wanted = max(at_least, len(above)) if is_definition else 1
            have = next((index for index, line in enumerate(rest) if line.comment is not None), len(rest))
            if is_definition and len(above) > 1:
                rest, have, above = [*above[1:], *rest], have + len(above) - 1, above[:1]
            rest = [cst.EmptyLine(indent=False)] * max(0, wanted - have) + rest
        before[0] = before[0].with_changes(leading_lines=above or getattr(before[0], "leading_lines", []))
        return kept.with_changes(leading_lines=rest)

    def _wants_gap(self, place: Place | None) -> bool:
        return place is not None and any(item.gap and not item.after for item in self._inserts.get(place, ()))

    def _before(self, place: Place | None) -> list[cst.BaseStatement]:
        return self._inserted(place, after=False)

    def _after(self, place: Place | None) -> list[cst.BaseStatement]:
        return self._inserted(place, after=True)

    def _inserted(self, place: Place | None, *, after: bool) -> list[cst.BaseStatement]:
        found: list[cst.BaseStatement] = []
        if place is None:
            return found
        chosen = [item for item in self._inserts.get(place, ()) if item.after is after and id(item) not in self._done]
        for item in sorted(chosen, key=lambda item: item.order):
            self._done.add(id(item))
            found.extend(_parse(item.code))
        return found

    def _finish_removal(self, place: Place | None) -> bool:
        """Notes that a removal took place; returns whether the comments stay."""
        kept = False
        for action in self._actions:
            if isinstance(action, Remove) and self._start(action.statement) == place:
                self._done.add(id(action))
                kept = kept or action.keep_comments
        return kept


def _inner(statement: cst.BaseStatement, suites: Sequence[str]) -> list[cst.BaseStatement]:
    """The statements of the named suites; the comments above the compound statement and below its suites stay."""
    found: list[cst.BaseStatement] = []
    below: list[cst.EmptyLine] = []
    for name in suites:
        owner: object = statement
        if name == "handler":
            owner = getattr(statement, "handlers")[0]  # noqa: B009 (any compound statement may come)
        elif name != "body":
            owner = getattr(statement, name)
        block = getattr(owner, "body", None)
        if isinstance(owner, cst.If) and name == "orelse":  # an elif becomes the if
            rows: list[cst.BaseStatement] = [owner]
        elif isinstance(block, cst.SimpleStatementSuite):
            rows = [cst.SimpleStatementLine(block.body, trailing_whitespace=block.trailing_whitespace)]
        elif isinstance(block, cst.IndentedBlock):
            rows = list(block.body)
        else:
            continue
        if rows and below and hasattr(rows[0], "leading_lines"):
            rows[0] = rows[0].with_changes(leading_lines=[*below, *rows[0].leading_lines])
        below = [line for line in getattr(block, "footer", ()) if line.comment is not None]
        found.extend(rows)
    if found and hasattr(found[0], "leading_lines"):
        above = list(getattr(statement, "leading_lines", ()))
        found[0] = found[0].with_changes(leading_lines=[*above, *found[0].leading_lines])
    return found


def _with_two_blank_lines(statement: cst.BaseStatement) -> cst.BaseStatement:
    """A definition that has come out of a block to the level of the file; one blank line above it becomes two."""
    lines = list(getattr(statement, "leading_lines", ()))
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)) and len(lines) == 1 and lines[0].comment is None:
        return statement.with_changes(leading_lines=[*lines, cst.EmptyLine(indent=False)])
    return statement


def _apart(lines: list[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """Of the lines above a statement, those that a blank line keeps apart from it: they speak of more than it."""
    blank = [index for index, line in enumerate(lines) if line.comment is None]
    return lines[: blank[-1] + 1] if blank else []


def _without_blank_lines_above(statement: cst.BaseStatement) -> cst.BaseStatement:
    """The statement at the head of its suite, where one with a blank line below it stood."""
    lines = list(getattr(statement, "leading_lines", ()))
    while lines and lines[0].comment is None:
        del lines[0]
    return statement.with_changes(leading_lines=lines) if hasattr(statement, "leading_lines") else statement


def _parse(code: str) -> list[cst.BaseStatement]:
    module = cst.parse_module(code if code.endswith("\n") else code + "\n")
    statements = list(module.body)
    if module.header:
        statements[0] = statements[0].with_changes(leading_lines=[*module.header, *statements[0].leading_lines])
    return statements  # type: ignore[return-value]


def _split(line: cst.SimpleStatementLine) -> list[cst.SimpleStatementLine]:
    """One line for each statement of ``a; b``; the comment stays with the last."""
    found = []
    for index, item in enumerate(line.body):
        part = cst.SimpleStatementLine([item.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])
        if index == 0:
            part = part.with_changes(leading_lines=line.leading_lines)
        if index == len(line.body) - 1:
            part = part.with_changes(trailing_whitespace=line.trailing_whitespace)
        found.append(part)
    return found


def _block(header: str, body: list[cst.BaseStatement]) -> cst.BaseStatement:
    """``header`` and the statements below it; a comment above the first stays above the block."""
    block = cst.parse_statement(f"{header}\n    pass\n")
    leading: Sequence[cst.EmptyLine] = getattr(body[0], "leading_lines", ())
    if hasattr(body[0], "leading_lines"):
        body = [body[0].with_changes(leading_lines=()), *body[1:]]
    indented = cst.IndentedBlock(body).visit(_BlankLines())
    return block.with_changes(leading_lines=leading, body=indented)


class _BlankLines(cst.CSTTransformer):
    """Takes the indentation out of blank lines, which would grow with the block."""

    def leave_EmptyLine(self, original_node: cst.EmptyLine, updated_node: cst.EmptyLine) -> cst.EmptyLine:
        if updated_node.comment is not None:
            return updated_node
        return updated_node.with_changes(indent=False, whitespace=cst.SimpleWhitespace(""))


class _Shift(cst.CSTTransformer):
    """Moves the rows of an argument list to the right, or to the left."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns

    def leave_ParenthesizedWhitespace(
        self, original_node: cst.ParenthesizedWhitespace, updated_node: cst.ParenthesizedWhitespace
    ) -> cst.ParenthesizedWhitespace:
        row = updated_node.last_line.value
        moved = row + " " * self.columns if self.columns > 0 else row[: max(0, len(row) + self.columns)]
        return updated_node.with_changes(last_line=cst.SimpleWhitespace(moved))


def _lost_comments(before: cst.BaseExpression, after: cst.BaseExpression) -> list[cst.Comment]:
    """Comments inside of an expression that are not in what became of it."""
    if "#" not in cst.Module([]).code_for_node(before):
        return []
    kept = [comment.value for comment in _comments(after)]
    lost = []
    for comment in _comments(before):
        if comment.value in kept:
            kept.remove(comment.value)
        else:
            lost.append(comment)
    return lost


def _comments(node: cst.CSTNode) -> list[cst.Comment]:
    found = [node] if isinstance(node, cst.Comment) else []
    for child in node.children:
        found += _comments(child)
    return found


def shifted(node: cst.BaseExpression, columns: int) -> cst.BaseExpression:
    """The expression with its rows below the first moved to the right, or to the left."""
    found = node.visit(_Shift(columns)) if columns else node
    assert isinstance(found, cst.BaseExpression)
    return found


def _last_row(node: cst.BaseExpression) -> str:
    return cst.Module([]).code_for_node(node).rpartition("\n")[2]


_KINDS: dict[type[ast.expr], type[cst.BaseExpression]] = {
    ast.Call: cst.Call,
    ast.Name: cst.Name,
    ast.Attribute: cst.Attribute,
    ast.Subscript: cst.Subscript,
}


def _same_kind(node: ast.expr, other: cst.BaseExpression) -> bool:
    kind = _KINDS.get(type(node))
    return kind is None or isinstance(other, kind)
