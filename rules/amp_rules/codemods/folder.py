"""Make folders that another process may have made in between.

## What it does
`if not os.path.exists(d): os.mkdir(d)` becomes `os.makedirs(d, exist_ok=True)` inside its condition.

## Why
Two processes look at the same time, both find nothing, and the second fails.

## Before
    if not os.path.isdir("checkpoint"):
        os.mkdir("checkpoint")

## After
    if not os.path.isdir("checkpoint"):
        os.makedirs("checkpoint", exist_ok=True)

## When it declines
Where the folder is not looked for first: then an existing folder may be meant to be an error.

## Source
https://docs.python.org/3/library/os.html#os.makedirs
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from amp_rules.context import Change, Context
from amp_rules.rewrite import Replace, add_keyword
from amp_rules.rule import Rule

RULE = Rule("AMP209", "folder-made-once", "A folder may have been made by another process.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each folder that is made after having looked for it."""
    if context.distribution is None:
        return
    for site in context.distribution.folders:
        assert isinstance(site.node, ast.Call)
        message = f"`{site.module.text(site.node)}` also holds when another process was faster"
        yield Change(RULE, site.module, site.node, message, [Replace(site.node, _makedirs)])


def _makedirs(node: cst.BaseExpression) -> cst.BaseExpression:
    call = cst.ensure_type(add_keyword("exist_ok=True")(node), cst.Call)
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "mkdir":
        return call.with_changes(func=call.func.with_changes(attr=cst.Name("makedirs")))
    return call
