"""Edits of expressions that several of the rewrites make."""

from __future__ import annotations

import libcst as cst

from amp_rules.text.actions import ExpressionEdit
from amp_rules.text.expression_edits import shifted

_ATOMS = (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.List, cst.Dict, cst.Set)
_BARE = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def unwrapped(suffix: str = "", *, grouped: bool = True, keyword: str = "", aligned: bool = False) -> ExpressionEdit:
    """``f(x)`` becomes ``x``, with ``suffix`` behind it; in parentheses where what stands there needs them.

    Rows that are ``aligned`` below something in the first one move with it.
    """

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        argument = next((item for item in call.args if item.keyword and item.keyword.value == keyword), call.args[0])
        value = shifted(argument.value, -_width(call)) if aligned else argument.value
        rows = cst.Module([]).code_for_node(value)
        if not isinstance(value, _ATOMS) and not value.lpar and (grouped or suffix or "\n" in rows):
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        if suffix:
            value = _chained(value, suffix)
        return value.with_changes(lpar=[*call.lpar, *value.lpar], rpar=[*value.rpar, *call.rpar])

    return edit


def _width(call: cst.Call) -> int:
    """How far the argument moves to the left."""
    if "\n" in cst.Module([]).code_for_node(call.whitespace_before_args):
        return 0
    return len(cst.Module([]).code_for_node(call.func)) + 1


def _chained(value: cst.BaseExpression, suffix: str) -> cst.BaseExpression:
    """``x`` with ``.detach().requires_grad_()`` behind it."""

    class Stem(cst.CSTTransformer):
        def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
            return value if original_node.value == "_stem" else updated_node

    found = cst.parse_expression("_stem" + suffix).visit(Stem())
    assert isinstance(found, cst.BaseExpression)
    return found


def receiver(suffix: str, depth: int) -> ExpressionEdit:
    """``x.a.b`` becomes ``x`` with ``suffix`` behind it, ``depth`` attributes, subscripts or calls taken away."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        value = node
        for _ in range(depth):
            if isinstance(value, cst.Call):
                value = value.func
            elif isinstance(value, (cst.Attribute, cst.Subscript)):
                value = value.value
        found = _chained(value, suffix)
        if isinstance(found, (cst.Call, cst.Attribute)) and getattr(node, "lpar", None):
            return found.with_changes(lpar=node.lpar, rpar=node.rpar)
        return found

    return edit


def last_name(name: str) -> ExpressionEdit:
    """``a.b.old`` becomes ``a.b.name``, and ``old`` becomes ``name``."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        if isinstance(node, cst.Attribute):
            return node.with_changes(attr=cst.Name(name))
        return cst.ensure_type(node, cst.Name).with_changes(value=name)

    return edit


def keyword_name(old: str, new: str) -> ExpressionEdit:
    """``f(old=x)`` becomes ``f(new=x)``."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        arguments = [
            item.with_changes(keyword=cst.Name(new)) if item.keyword and item.keyword.value == old else item
            for item in call.args
        ]
        return call.with_changes(args=arguments)

    return edit


def without_arguments(*indices: int, added: str = "", named: dict[int, str] | None = None) -> ExpressionEdit:
    """A call without some arguments, with one at the end of the first one's place, and others by their names."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        kept: list[cst.Arg] = []
        new = cst.ensure_type(cst.parse_expression(f"f({added})"), cst.Call).args[0] if added else None
        last = call.args[-1]
        for index, item in enumerate(call.args):
            if index in indices:
                if new is not None:
                    kept.append(new.with_changes(comma=item.comma, whitespace_after_arg=item.whitespace_after_arg))
                    new = None
                continue
            name = (named or {}).get(index)
            kept.append(item.with_changes(keyword=cst.Name(name), equal=_BARE) if name else item)
        if new is not None:
            if kept and not isinstance(kept[-1].comma, cst.Comma):
                comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
                kept[-1] = kept[-1].with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
            kept.append(new)
        elif kept and call.args.index(last) in indices and kept[-1] is not last:
            kept[-1] = kept[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
        return call.with_changes(args=_positional_first(kept))

    return edit


def arguments_in_order(order: list[tuple[int, str]]) -> ExpressionEdit:
    """A call with its arguments in another order, some by a name."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        kept = []
        for place, (index, name) in enumerate(order):
            item, stood = call.args[index], call.args[place]
            item = item.with_changes(comma=stood.comma, whitespace_after_arg=stood.whitespace_after_arg)
            kept.append(item.with_changes(keyword=cst.Name(name), equal=_BARE) if name else item)
        return call.with_changes(args=[*kept, *call.args[len(order) :]])

    return edit


def _positional_first(arguments: list[cst.Arg]) -> list[cst.Arg]:
    """A new keyword may have come before an argument without one; then it changes places with its neighbour."""
    for index in range(len(arguments) - 1):
        one, other = arguments[index], arguments[index + 1]
        if one.keyword is not None and other.keyword is None and not other.star:
            arguments[index] = other.with_changes(comma=one.comma, whitespace_after_arg=one.whitespace_after_arg)
            arguments[index + 1] = one.with_changes(comma=other.comma, whitespace_after_arg=other.whitespace_after_arg)
    return arguments


def has_comment_beside(lines: list[str], outer: tuple[tuple[int, int], tuple[int, int]], inner: str) -> bool:
    """Whether a comment stands within a range of lines, other than in a part of it."""
    (line, column), (end_line, end_column) = outer
    rows = lines[line - 1 : end_line]
    if len(rows) == 1:
        return False
    rows = [rows[0][column:], *rows[1:-1], rows[-1][:end_column]]
    return sum("#" in row for row in rows) > inner.count("#")
