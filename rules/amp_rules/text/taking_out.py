"""Expressions that get a statement of their own, above the one they stand in."""

from __future__ import annotations

import ast

import libcst as cst

from amp_rules.text.actions import ExpressionEdit, Insert, Replace
from amp_rules.text.expression_edits import shifted

_STEP = "    "


def taken_out(
    node: ast.expr,
    statement: ast.stmt,
    name: str,
    *,
    header: str = "",
    below: str = "",
    instead: ExpressionEdit | None = None,
) -> tuple[Insert, Replace]:
    """Assign an expression, as other edits leave it, to a variable above its statement.

    Args:
        node: the expression.
        statement: the statement that it stands in.
        name: the variable.
        header: the head of a block around the assignment, such as ``with amp.autocast():``.
        below: lines below the assignment.
        instead: what the variable becomes in the place of the expression; the variable itself by default.
    """
    texts: list[str] = []
    start = f"{header}\n{_STEP}{name} = " if header else f"{name} = "

    def edit(given: cst.BaseExpression) -> cst.BaseExpression:
        texts.append(_assigned(given, start))
        return instead(cst.Name(name)) if instead is not None else cst.Name(name)

    def lines() -> str:
        return f"{start}{texts[-1]}\n{below}".rstrip("\n")

    return Insert(statement, "", late=lines, commented=bool(header)), Replace(node, edit, moves_comments=True)


def _assigned(given: cst.BaseExpression, start: str) -> str:
    """The text of an expression behind ``name =``, its rows where they stood below its first one."""
    first, *more = _rows(given)
    if not more:
        return _in_parentheses(_rows(given.with_changes(lpar=(), rpar=()))[0])
    head = start.rpartition("\n")[2]
    deeper = len(head) - len(head.lstrip(" "))
    column = len(more[0]) - len(more[0].lstrip(" "))
    is_below_the_first = not first.endswith(("(", "[")) and first[column - 1 : column] in ("(", "[")
    return _in_parentheses("\n".join(_rows(shifted(given, len(head) if is_below_the_first else deeper))))


def _in_parentheses(text: str) -> str:
    """With parentheses, where an assignment needs them: around a walrus, and several rows that nothing else holds."""
    try:
        is_one = len(ast.parse(f"name = {text}").body) == 1
    except SyntaxError:
        is_one = False
    return text if is_one else f"({text})"


def _rows(node: cst.BaseExpression) -> list[str]:
    return cst.Module([]).code_for_node(node).split("\n")
