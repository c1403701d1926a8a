"""How a call that makes a folder comes to accept one that is there."""

from __future__ import annotations

import libcst as cst

from amp_rules.text.actions import ExpressionEdit
from amp_rules.text.expression_edits import add_keyword


def allowing(allowed: str, *, is_mkdir: bool) -> ExpressionEdit:
    """Let a call that makes a folder accept one that is there.

    Args:
        allowed: the value of ``exist_ok``.
        is_mkdir: whether it is ``os.mkdir``, which has no such argument: ``os.makedirs`` has.
    """

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        index = next((i for i, item in enumerate(call.args) if item.keyword and item.keyword.value == "exist_ok"), None)
        if index is None:
            call = cst.ensure_type(add_keyword(f"exist_ok={allowed}")(call), cst.Call)
        else:
            given = call.args[index].value
            old = cst.Module([]).code_for_node(given)
            simple = isinstance(given, (cst.Name, cst.Attribute, cst.Call))
            value = cst.parse_expression(
                allowed if old == "False" else f"{old} or {allowed}" if simple else f"({old}) or {allowed}"
            )
            arguments = [*call.args]
            arguments[index] = arguments[index].with_changes(value=value)
            call = call.with_changes(args=arguments)
        if is_mkdir:
            function = cst.ensure_type(call.func, cst.Attribute)
            return call.with_changes(func=function.with_changes(attr=cst.Name("makedirs")))
        return call

    return edit
