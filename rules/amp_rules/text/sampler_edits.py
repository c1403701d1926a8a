"""Edits of a ``DataLoader(...)`` that gets a sampler."""

from __future__ import annotations

import libcst as cst

from amp_rules.text.actions import ExpressionEdit
from amp_rules.text.expression_edits import add_keyword

_SHUFFLE, _SAMPLER = 2, 3
"""The places of these arguments."""

_LINE = 84
"""A constructor that is longer gets several lines; a variable and its indentation stand before it."""

_LOOSER_THAN_AND = (cst.IfExp, cst.Lambda, cst.NamedExpr)


def with_sampler(sampler: str, shuffle: str, dataset: str | None = None) -> ExpressionEdit:
    """``DataLoader(data, shuffle=True)`` becomes ``DataLoader(data, shuffle=sampler is None, sampler=sampler)``.

    Args:
        sampler: the variable of the sampler, which is None in a single process.
        shuffle: the source of what the loader is given for ``shuffle``; ``False`` where it is given nothing.
        dataset: a variable to be given in place of the dataset's expression.
    """

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        arguments = []
        is_given = False
        for index, item in enumerate(call.args):
            name = item.keyword.value if item.keyword is not None else None
            if item.star:
                arguments.append(item)
                continue
            if dataset is not None and (name == "dataset" or (name is None and index == 0)):
                item = item.with_changes(value=cst.parse_expression(dataset))
            elif name == "shuffle" or (name is None and index == _SHUFFLE):
                item = item.with_changes(value=_unless_shared(item.value, shuffle, sampler))
            elif name == "sampler" or (name is None and index == _SAMPLER):
                item = item.with_changes(value=cst.parse_expression(sampler))
                is_given = True
            arguments.append(item)
        call = call.with_changes(args=arguments)
        whole = call if is_given else add_keyword(f"sampler={sampler}")(call)
        return _on_several_lines(cst.ensure_type(whole, cst.Call))

    return edit


def _on_several_lines(call: cst.Call) -> cst.Call:
    """A call that grew too long for one line: its arguments get a line of their own, or one each."""
    code = cst.Module([]).code_for_node(call)
    if "\n" in code or len(code) <= _LINE:
        return call
    inner = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace("    "))
    outer = cst.ParenthesizedWhitespace(indent=True)
    arguments = list(call.args)
    if len(code) - len(cst.Module([]).code_for_node(call.func)) > _LINE:
        between = cst.Comma(whitespace_after=inner)
        arguments = [item.with_changes(comma=between) for item in arguments]
        arguments[-1] = arguments[-1].with_changes(comma=cst.Comma(whitespace_after=outer))
    else:
        arguments[-1] = arguments[-1].with_changes(whitespace_after_arg=outer)
    return call.with_changes(whitespace_before_args=inner, args=arguments)


def _unless_shared(value: cst.BaseExpression, shuffle: str, sampler: str) -> cst.BaseExpression:
    if shuffle == "True":
        return cst.parse_expression(f"{sampler} is None")
    if shuffle == "False":
        return value
    code = cst.Module([]).code_for_node(value)
    is_looser = isinstance(value, _LOOSER_THAN_AND) or (
        isinstance(value, cst.BooleanOperation) and isinstance(value.operator, cst.Or)
    )
    code = f"({code})" if is_looser and not value.lpar else code
    return cst.parse_expression(f"{code} and {sampler} is None")
