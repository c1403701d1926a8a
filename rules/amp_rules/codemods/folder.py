"""Make folders that another process may have made in between.

## What it does
`os.mkdir(d)` after `if not os.path.exists(d):` becomes `os.makedirs(d, exist_ok=True)`. Where the script did not
look first, and so may mean an existing folder to be an error, only several processes accept it:
`exist_ok=amp.world_size() > 1`.

## Why
Two processes look at the same time, both find nothing, and the second fails.

## Before
    if not os.path.isdir("checkpoint"):
        os.mkdir("checkpoint")

## After
    if not os.path.isdir("checkpoint"):
        os.makedirs("checkpoint", exist_ok=True)

## When it declines
Under `try`, which may handle the error, and with `exist_ok=True`.

## Leaving it out
No: the slower process fails at its first line of work.

## Source
https://docs.python.org/3/library/os.html#os.makedirs
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from amp_rules.context import Change, Context
from amp_rules.rewrite import ExpressionEdit, Replace, add_keyword
from amp_rules.rule import Rule

RULE = Rule("AMP209", "folder-made-once", "A folder may have been made by another process.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each folder that two processes may make at once."""
    if context.distribution is None:
        return
    for site in context.distribution.folders:
        assert isinstance(site.node, ast.Call)
        allowed = "True" if site.looked else context.code(site.module, "{amp}.world_size() > 1")
        message = f"`{site.module.text(site.node)}` also holds when another process was faster"
        action = Replace(site.node, _allowing(allowed, site.is_mkdir))
        yield Change(RULE, site.module, site.node, message, [action], uses_runtime=not site.looked)


def _allowing(allowed: str, is_mkdir: bool) -> ExpressionEdit:
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
