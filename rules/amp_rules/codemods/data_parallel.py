"""Take `DataParallel` out.

## What it does
Removes `model = nn.DataParallel(model)`, with the condition around it when nothing else is left in there. State dicts
that the model loads go through `amp.without_module_prefix(...)`: DataParallel put `module.` in front of their keys.
`data_parallel(model, x, devices)`, the function, becomes `model(x)`.

## Why
`DataParallel` drives all devices from one process; with one process for each device it would take them from
the others.

## Before
    if torch.cuda.device_count() > 1:
        model = nn.DataParallel(model)

## After
    (removed)

## When it declines
Never. Run as one process, the script uses one device: start one process for each with torchrun.

## Leaving it out
No: each process would use the devices of the others.

## Source
https://pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from amp_rules.context import Change, Context
from amp_rules.program import blocks
from amp_rules.program.modules import Module
from amp_rules.program.steps import Site
from amp_rules.rewrite import Action, Insert, Remove, Replace, call_with
from amp_rules.rule import Rule

RULE = Rule("AMP203", "no-data-parallel", "One process drives one device.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield a removal for each ``DataParallel``."""
    if context.distribution is None:
        return
    for site in context.distribution.parallel:
        message = "torchrun starts one process for each device; DataParallel would use them all from each"
        yield Change(RULE, site.module, site.node, message, _actions(site), uses_runtime=False)
    for site in context.distribution.spread:
        assert isinstance(site.node, ast.expr)
        message = f"`{site.module.text(site.node)}` would spread the model over the devices of other processes"
        yield Change(RULE, site.module, site.node, message, [Replace(site.node, _plain_call)], uses_runtime=False)
    for site in context.distribution.state_loads:
        assert isinstance(site.node, ast.expr)
        edit = call_with(context.code(site.module, "{amp}.without_module_prefix"))
        message = f"`{site.module.text(site.node)}` may have been saved from DataParallel"
        yield Change(RULE, site.module, site.node, message, [Replace(site.node, edit)])


def _actions(site: Site) -> list[Action]:
    call = site.node
    assert isinstance(call, ast.Call)
    statement = site.statement
    if isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1 and call.args:
        if blocks.path_of(statement.targets[0]) == blocks.path_of(call.args[0]) is not None:
            emptied = _emptied(site.module, statement)
            if emptied is not None:
                return [Remove(emptied)]
            return [Remove(statement), Insert(statement, "pass", after=True)]
    return [Replace(call, _first_argument)]


def _emptied(module: Module, statement: ast.stmt) -> ast.stmt | None:
    """The statement to remove with ``statement``; None when that would leave an empty suite behind."""
    where = blocks.place(module, statement)
    if len(where.suite) > 1:
        return statement
    parent = where.parent
    if isinstance(parent, ast.If) and not parent.orelse and list(where.suite) == parent.body:
        return _emptied(module, parent) or parent
    return None


def _plain_call(node: cst.BaseExpression) -> cst.BaseExpression:
    """``model(x)`` for ``data_parallel(model, x, ...)``."""
    call = cst.ensure_type(node, cst.Call)
    given = call.args[1].with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(func=call.args[0].value, args=[given], whitespace_before_args=cst.SimpleWhitespace(""))


def _first_argument(node: cst.BaseExpression) -> cst.BaseExpression:
    return cst.ensure_type(node, cst.Call).args[0].value
