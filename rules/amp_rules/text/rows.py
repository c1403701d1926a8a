"""Rows of a suite and the blank lines and comments above them, apart from any action."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import libcst as cst

from amp_rules.text.indentation import shifted


def statements_of_suites(statement: cst.BaseStatement, suites: Sequence[str]) -> list[cst.BaseStatement]:
    """The statements of the named suites; the comments above the compound statement and below its suites stay."""
    found: list[cst.BaseStatement] = []
    below: list[cst.EmptyLine] = []
    for name in suites:
        owner: object = statement
        if name == "handler":
            owner = getattr(statement, "handlers")[0]  # noqa: B009 (any compound statement may come)
        elif name != "body":
            owner = getattr(statement, name)
        suite = getattr(owner, "body", None)
        if isinstance(owner, cst.If) and name == "orelse":  # an elif becomes the if
            rows: list[cst.BaseStatement] = [owner]
        elif isinstance(suite, cst.SimpleStatementSuite):
            rows = [cst.SimpleStatementLine(suite.body, trailing_whitespace=suite.trailing_whitespace)]
        elif isinstance(suite, cst.IndentedBlock):
            rows = list(suite.body)
        else:
            continue
        if rows and below and hasattr(rows[0], "leading_lines"):
            rows[0] = rows[0].with_changes(leading_lines=[*below, *rows[0].leading_lines])
        below = [line for line in getattr(suite, "footer", ()) if line.comment is not None]
        found.extend(rows)
    if found and hasattr(found[0], "leading_lines"):
        above = list(getattr(statement, "leading_lines", ()))
        found[0] = found[0].with_changes(leading_lines=[*above, *found[0].leading_lines])
    return found


def below_suites(statement: cst.BaseStatement, suites: Sequence[str]) -> list[cst.EmptyLine]:
    """The comments at the foot of the last of the named suites, with the blank lines above them."""
    owner: object = statement if suites[-1] == "body" else getattr(statement, suites[-1], None)
    while isinstance(owner, cst.If) and suites[-1] == "orelse" and owner.orelse is not None:
        owner = owner.orelse
    suite = getattr(owner, "body", None)
    lines = list(getattr(suite, "footer", ()))
    while lines and lines[-1].comment is None:
        del lines[-1]
    return [line if line.comment is not None else cst.EmptyLine(indent=False) for line in lines]


def without_trailing_space(statement: cst.BaseStatement) -> cst.BaseStatement:
    """A statement that has come out of a block: its blank lines have no indentation of the block."""
    moved = statement.visit(_Bare())
    assert isinstance(moved, cst.BaseStatement)
    return moved


def with_docstrings_moved(statement: cst.BaseStatement, indent: str) -> cst.BaseStatement:
    """A definition that has come out of a block; the further lines of its docstrings come along, as LibCST's do not."""
    if not isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return statement
    moved = statement.visit(_MovedDocstrings(indent))
    assert isinstance(moved, (cst.FunctionDef, cst.ClassDef))
    return moved


def with_two_blank_lines(statement: cst.BaseStatement) -> cst.BaseStatement:
    """A definition that has come out of a block to the level of the file; one blank line above it becomes two."""
    lines = list(getattr(statement, "leading_lines", ()))
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)) and len(lines) == 1 and lines[0].comment is None:
        return statement.with_changes(leading_lines=[*lines, cst.EmptyLine(indent=False)])
    return statement


def with_two_lines_above(statement: cst.BaseStatement) -> cst.BaseStatement:
    """A statement of the file below a new function: two blank lines stand between them, at least."""
    lines = list(getattr(statement, "leading_lines", ()))
    missing = 2 - len(blank_lines_above(statement))
    if missing <= 0 or not hasattr(statement, "leading_lines"):
        return statement
    return statement.with_changes(leading_lines=[*[cst.EmptyLine(indent=False)] * missing, *lines])


def lines_apart(lines: list[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """Of the lines above a statement, those that a blank line keeps apart from it: they speak of more than it."""
    blank = [index for index, line in enumerate(lines) if line.comment is None]
    return lines[: blank[-1] + 1] if blank else []


def blank_lines_above(statement: cst.BaseStatement) -> list[cst.EmptyLine]:
    """The blank lines between a statement, with its comments, and what stands above."""
    return list(takewhile(lambda line: line.comment is None, getattr(statement, "leading_lines", ())))


def is_import(statement: cst.BaseStatement) -> bool:
    """Whether a statement imports something, and does nothing else."""
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(item, (cst.Import, cst.ImportFrom)) for item in statement.body
    )


def left_of_suite(statement: cst.CSTNode, indent: str, column: int) -> list[cst.EmptyLine]:
    """The lines at the end of a compound statement from the first comment on that stands left of its suite.

    LibCST counts them to the suite where a comment below them is indented as it is; they belong to what follows.
    """
    while isinstance(statement, cst.If) and statement.orelse is not None:
        statement = statement.orelse
    suite = getattr(statement, "body", None)
    if not isinstance(suite, cst.IndentedBlock):
        return []
    first = next(
        (index for index, line in enumerate(suite.footer) if line.comment is not None and not line.indent), None
    )
    if first is None:
        return []
    while first and suite.footer[first - 1].comment is None:
        first -= 1
    # In another suite these lines stand where they stood.
    margin = (indent[:1] or " ") * column + (suite.indent or indent)
    return [
        line.with_changes(indent=False, whitespace=cst.SimpleWhitespace(margin + line.whitespace.value))
        if line.indent
        else line
        for line in suite.footer[first:]
    ]


def without_blank_lines_above(statement: cst.BaseStatement) -> cst.BaseStatement:
    """The statement at the head of its suite, where one with a blank line below it stood."""
    lines = list(getattr(statement, "leading_lines", ()))
    while lines and lines[0].comment is None:
        del lines[0]
    return statement.with_changes(leading_lines=lines) if hasattr(statement, "leading_lines") else statement


def parsed(code: str, step: str) -> list[cst.BaseStatement]:
    """The statements of new code, its blocks indented by ``step``; a comment at its head belongs to the first."""
    module = cst.parse_module(code if code.endswith("\n") else code + "\n").visit(_Stepped(step))
    statements = list(module.body)
    if module.header:
        header = [line if line.comment else line.with_changes(indent=False) for line in module.header]
        statements[0] = statements[0].with_changes(leading_lines=[*header, *statements[0].leading_lines])
    return statements  # type: ignore[return-value]


def set_apart(
    rows: list[cst.BaseStatement], groups: Sequence[tuple[cst.BaseStatement, cst.BaseStatement]]
) -> list[cst.BaseStatement]:
    """The rows with a blank line above and below each group, given by its first and its last row."""
    heads = {id(first) for first, _ in groups}
    ends = {id(last) for _, last in groups}
    found = list(rows)
    for index, row in enumerate(rows):
        if index and (id(row) in heads or id(rows[index - 1]) in ends) and hasattr(row, "leading_lines"):
            lines = list(row.leading_lines)
            if not lines or lines[0].comment is not None:
                found[index] = row.with_changes(leading_lines=[cst.EmptyLine(indent=False), *lines])
    return found


def one_line_each(line: cst.SimpleStatementLine) -> list[cst.SimpleStatementLine]:
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


def block(header: str, body: list[cst.BaseStatement], indent: str) -> cst.BaseStatement:
    """``header`` and the statements below it; a comment above the first stays above the block."""
    whole = cst.parse_statement(f"{header}\n    pass\n")
    leading: Sequence[cst.EmptyLine] = getattr(body[0], "leading_lines", ())
    if hasattr(body[0], "leading_lines"):
        body = [body[0].with_changes(leading_lines=()), *body[1:]]
    indented = cst.IndentedBlock(body, indent=indent).visit(_Moved(indent))
    return whole.with_changes(leading_lines=leading, body=indented)


class _Stepped(cst.CSTTransformer):
    """Indents the blocks of new code as those of the file that it goes into."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self._step = step

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return updated_node if updated_node.indent is not None else updated_node.with_changes(indent=self._step)


class _MovedDocstrings(cst.CSTTransformer):
    """Takes an indentation from the lines of docstrings where all have it: what `inspect.getdoc` gives is the same."""

    def __init__(self, indent: str) -> None:
        super().__init__()
        self._indent = indent

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        first = updated_node.body[0] if updated_node.body else None
        if not isinstance(first, cst.SimpleStatementLine) or not isinstance(first.body[0], cst.Expr):
            return updated_node
        text = first.body[0].value
        head, *rows = text.value.split("\n") if isinstance(text, cst.SimpleString) else [""]
        if not rows or not all(row.startswith(self._indent) for row in rows if row.strip()):
            return updated_node
        moved = text.with_changes(value="\n".join([head, *(row.removeprefix(self._indent) for row in rows)]))
        return updated_node.with_deep_changes(first.body[0], value=moved)


class _Bare(cst.CSTTransformer):
    """Takes the white space out of blank lines."""

    def leave_EmptyLine(self, original_node: cst.EmptyLine, updated_node: cst.EmptyLine) -> cst.EmptyLine:
        if updated_node.comment is not None:
            return updated_node
        return updated_node.with_changes(indent=False, whitespace=cst.SimpleWhitespace(""))


class _Moved(_Bare):
    """Moves what LibCST does not with a block.

    Blank lines lose their indentation. Rows below a backslash gain one, and so do rows within brackets that begin
    with other white space than their block does.
    """

    def __init__(self, indent: str) -> None:
        super().__init__()
        self._indent = indent

    def leave_SimpleWhitespace(
        self, original_node: cst.SimpleWhitespace, updated_node: cst.SimpleWhitespace
    ) -> cst.SimpleWhitespace:
        head, *rows = updated_node.value.split("\n")
        return updated_node.with_changes(value="\n".join([head, *(shifted(row, self._indent) for row in rows)]))

    def leave_ParenthesizedWhitespace(
        self, original_node: cst.ParenthesizedWhitespace, updated_node: cst.ParenthesizedWhitespace
    ) -> cst.ParenthesizedWhitespace:
        if updated_node.indent:
            return updated_node
        return updated_node.with_changes(last_line=self._shifted(updated_node.last_line))

    def _shifted(self, space: cst.SimpleWhitespace) -> cst.SimpleWhitespace:
        return space.with_changes(value=shifted(space.value, self._indent))
