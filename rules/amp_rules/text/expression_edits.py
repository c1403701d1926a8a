"""Edits of an expression that many rules make."""

from __future__ import annotations

import libcst as cst

from amp_rules.text.actions import ExpressionEdit


def call_with(function: str, *more: str) -> ExpressionEdit:
    """``x`` becomes ``function(x, more...)``."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(cst.parse_expression(f"{function}({', '.join(['x', *more])})"), cst.Call)
        bare = node.with_changes(lpar=[], rpar=[]) if _can_drop_parentheses(node) else node
        return call.with_changes(args=[call.args[0].with_changes(value=bare), *call.args[1:]])

    return edit


def either(test: str, other: str, margins: tuple[str, str] | None = None) -> ExpressionEdit:
    """``x`` becomes ``x if test else other``.

    With ``margins`` it becomes three lines in parentheses: where these lines begin, and the last parenthesis.
    """

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        choice = cst.ensure_type(cst.parse_expression(f"x if {test} else {other}"), cst.IfExp).with_changes(body=node)
        if margins is None:
            return choice
        row, last = (
            cst.ParenthesizedWhitespace(indent=False, last_line=cst.SimpleWhitespace(margin)) for margin in margins
        )
        return choice.with_changes(
            lpar=[cst.LeftParen(whitespace_after=row)],
            rpar=[cst.RightParen(whitespace_before=last)],
            whitespace_before_if=row,
            whitespace_before_else=row,
        )

    return edit


def as_function(function: str, *, tensor_last: bool = False) -> ExpressionEdit:
    """``x.f(a)`` becomes ``function(x, a)``, ``x @ y`` becomes ``function(x, y)``, ``1 + x`` ``function(x, 1)``.

    With ``tensor_last``, ``eps + x`` becomes ``function(x, eps)`` as well.
    """

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        if isinstance(node, cst.BinaryOperation):
            # Torch's functions take the tensor first.
            swaps = tensor_last or isinstance(node.left, cst.BaseNumber)
            first, second = (node.right, node.left) if swaps else (node.left, node.right)
            given = [cst.Arg(_as_argument(first), comma=comma), cst.Arg(_as_argument(second))]
        else:
            call = cst.ensure_type(node, cst.Call)
            receiver = _as_argument(cst.ensure_type(call.func, cst.Attribute).value)
            given = [cst.Arg(receiver, comma=comma if call.args else cst.MaybeSentinel.DEFAULT), *call.args]
        return cst.Call(cst.parse_expression(function), given)

    return edit


def _as_argument(node: cst.BaseExpression) -> cst.BaseExpression:
    """Without the parentheses that an operation needs in another one, where nothing but the operation is in them."""
    if not (node.lpar and isinstance(node, (cst.BinaryOperation, cst.UnaryOperation))):
        return node
    inner = [item.whitespace_after for item in node.lpar] + [item.whitespace_before for item in node.rpar]
    return node.with_changes(lpar=(), rpar=()) if all(_is_empty(item) for item in inner) else node


def _is_empty(space: cst.BaseParenthesizableWhitespace) -> bool:
    return isinstance(space, cst.SimpleWhitespace) and not space.value


def first_argument(node: cst.BaseExpression) -> cst.BaseExpression:
    """``f(x, ...)`` becomes ``x``."""
    return cst.ensure_type(node, cst.Call).args[0].value


def widened(node: cst.BaseExpression) -> cst.BaseExpression:
    """``x`` becomes ``x.float()``."""
    return cst.Call(cst.Attribute(_before_a_dot(node), cst.Name("float")))


def in_type(dtype: str) -> ExpressionEdit:
    """``x + y`` becomes ``(x + y).to(dtype)``."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        return cst.Call(cst.Attribute(_before_a_dot(node), cst.Name("to")), [cst.Arg(cst.parse_expression(dtype))])

    return edit


def _before_a_dot(node: cst.BaseExpression) -> cst.BaseExpression:
    """In parentheses where it needs them."""
    if isinstance(node, (cst.Name, cst.Attribute, cst.Subscript, cst.Call)) or node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def substitute(code: str) -> ExpressionEdit:
    """The expression becomes ``code``."""
    return lambda node: cst.parse_expression(code)


def change_function(code: str) -> ExpressionEdit:
    """``f(a, b)`` becomes ``code(a, b)``."""
    return lambda node: cst.ensure_type(node, cst.Call).with_changes(func=cst.parse_expression(code))


def without_argument(index: int) -> ExpressionEdit:
    """``f(a, b)`` becomes ``f(a)``: the argument at that place, by position or by name, goes."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        rows = [item for place, item in enumerate(call.args) if place != index]
        if rows and index == len(call.args) - 1:
            rows[-1] = rows[-1].with_changes(comma=call.args[-1].comma)
        return call.with_changes(args=rows)

    return edit


def add_keyword(code: str, below: int | None = None, *, is_hanging: bool = False) -> ExpressionEdit:
    """``f(a)`` becomes ``f(a, code)``; comments stay with the arguments that they stand beside.

    Args:
        code: the argument, with its name.
        below: the column at which it gets a line of its own, in a call that stands on one line.
        is_hanging: whether the other arguments go there too, to the line above.
    """

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        added = cst.ensure_type(cst.parse_expression(f"f({code})"), cst.Call).args[0]
        arguments = list(call.args)
        if arguments:
            last = arguments[-1]
            space: cst.BaseParenthesizableWhitespace = cst.SimpleWhitespace(" ")
            if len(arguments) > 1 and isinstance(arguments[-2].comma, cst.Comma):
                space = _without_comment(arguments[-2].comma.whitespace_after)
            if below is not None:
                column = cst.SimpleWhitespace(" " * below)
                space = cst.ParenthesizedWhitespace(indent=False, last_line=column)
            if isinstance(last.comma, cst.Comma):
                # ``f(\n    a,\n)``: the new argument gets a line and a comma of its own.
                if len(arguments) == 1:
                    space = call.whitespace_before_args
                beside = last.comma.whitespace_after
                added = added.with_changes(comma=last.comma.with_changes(whitespace_after=_without_comment(beside)))
            else:
                beside = last.whitespace_after_arg
                added = added.with_changes(whitespace_after_arg=_without_comment(beside))
            separator = cst.Comma(whitespace_after=_with_comment(space, beside))
            arguments[-1] = last.with_changes(comma=separator, whitespace_after_arg=cst.SimpleWhitespace(""))
        if below is not None and is_hanging:
            call = call.with_changes(whitespace_before_args=space)
        return call.with_changes(args=[*arguments, added])

    return edit


def add_entry(code: str, below: int | None = None) -> ExpressionEdit:
    """``{k: v}`` becomes ``{k: v, code}``; comments stay with the entries that they stand beside.

    Args:
        code: the entry, with its key.
        below: the column at which it gets a line of its own, where the line has no room.
    """

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        held = cst.ensure_type(node, cst.Dict)
        added = cst.ensure_type(cst.parse_expression(f"{{{code}}}"), cst.Dict).elements[0]
        *before, last = held.elements
        beside = held.rbrace.whitespace_before  # behind a comma at the end, too
        space: cst.BaseParenthesizableWhitespace = cst.SimpleWhitespace(" ")
        if before and isinstance(before[-1].comma, cst.Comma):
            space = _without_comment(before[-1].comma.whitespace_after)
        elif isinstance(last.comma, cst.Comma):
            space = _without_comment(held.lbrace.whitespace_after)
        if below is not None and isinstance(space, cst.SimpleWhitespace):
            space = cst.ParenthesizedWhitespace(indent=False, last_line=cst.SimpleWhitespace(" " * below))
        if isinstance(last.comma, cst.Comma):
            added = added.with_changes(comma=last.comma)
        last = last.with_changes(comma=cst.Comma(whitespace_after=_with_comment(space, beside)))
        rbrace = held.rbrace.with_changes(whitespace_before=_without_comment(beside))
        return held.with_changes(elements=[*before, last, added], rbrace=rbrace)

    return edit


def _without_comment(space: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    return space.with_changes(first_line=cst.TrailingWhitespace(newline=space.first_line.newline), empty_lines=[])


def _with_comment(
    space: cst.BaseParenthesizableWhitespace, other: cst.BaseParenthesizableWhitespace
) -> cst.BaseParenthesizableWhitespace:
    """The space after a comma, with the comments that the space after the last argument has."""
    if not isinstance(other, cst.ParenthesizedWhitespace):
        return space
    if other.first_line.comment is None and not any(line.comment for line in other.empty_lines):
        return space
    if not isinstance(space, cst.ParenthesizedWhitespace):
        space = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace("    "))
    return space.with_changes(first_line=other.first_line, empty_lines=other.empty_lines)


def _can_drop_parentheses(node: cst.BaseExpression) -> bool:
    """Whether the parentheses around an expression say nothing once it is an argument of its own."""
    if not getattr(node, "lpar", None) or isinstance(node, (cst.Tuple, cst.GeneratorExp, cst.NamedExpr, cst.Yield)):
        return False
    return "\n" not in cst.Module([]).code_for_node(node)


class Shift(cst.CSTTransformer):
    """Moves the rows of an argument list to the right, or to the left."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns

    def leave_ParenthesizedWhitespace(
        self, original_node: cst.ParenthesizedWhitespace, updated_node: cst.ParenthesizedWhitespace
    ) -> cst.ParenthesizedWhitespace:
        """Move one row."""
        row = updated_node.last_line.value
        moved = row + " " * self.columns if self.columns > 0 else row[: max(0, len(row) + self.columns)]
        return updated_node.with_changes(last_line=cst.SimpleWhitespace(moved))


def shifted(node: cst.BaseExpression, columns: int) -> cst.BaseExpression:
    """The expression with its rows below the first moved to the right, or to the left."""
    found = node.visit(Shift(columns)) if columns else node
    assert isinstance(found, cst.BaseExpression)
    return found
