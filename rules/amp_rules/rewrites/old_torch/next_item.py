"""Take the next batch by next().

## What it does
`iterator.next()` becomes `next(iterator)` where the iterator is that of a `DataLoader` or comes from `iter(...)`.

## Why
Python 3's iterators have no `next` method; those of `DataLoader` kept theirs until PyTorch 1.13.

## Before
    images, labels = iter(loader).next()

## After
    images, labels = next(iter(loader))

## When it declines
Where the object may be of a class with a `next` of its own. `None` is no such object.

## Leaving it out
Yes: the line stays and raises AttributeError.

## Source
https://docs.python.org/3/library/functions.html#next
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.source.modules import Module
from amp_rules.source.syntax import is_none
from amp_rules.text.actions import Replace

RULE = Rule("AMP508", "next", "The next item is taken by next().", "modern", optional=True)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each ``.next()`` of an iterator."""
    for module, node in old.nodes():
        if not isinstance(node, ast.Call) or node.args or node.keywords:
            continue
        func = node.func
        if not isinstance(func, ast.Attribute) or func.attr != "next":
            continue
        if _is_iterator(old, module, func.value):
            message = f"`{module.text(func.value)}` is an iterator, which has no method `next`"
            yield change(RULE, module, node, message, Replace(node, _edit))


def _edit(node: cst.BaseExpression) -> cst.BaseExpression:
    call = cst.ensure_type(node, cst.Call)
    value = cst.ensure_type(call.func, cst.Attribute).value
    found = cst.ensure_type(cst.parse_expression("next(x)"), cst.Call)
    return found.with_changes(args=[found.args[0].with_changes(value=value)], lpar=call.lpar, rpar=call.rpar)


# Variables and parameters through which an iterator is handed on; a function that calls itself would do so for ever.
_MOST_HANDS = 5


def _is_iterator(old: OldProgram, module: Module, node: ast.expr, depth: int = 0) -> bool:
    """Whether everything that the expression can be comes from ``iter`` or is a generator."""
    if depth > _MOST_HANDS:
        return False
    if is_none(node):
        return depth > 0  # what is taken from it is not None
    if isinstance(node, ast.Call):
        return old.tensors.target(module, node.func) in ("builtins.iter", "iter") or _is_builtin_iter(node)
    key = old.tensors.key(module, node)
    known = old.tensors.definitions(module).get(key, []) if key is not None else []
    if not known:
        return False
    for item in known:
        if item.kind == "parameter":
            values = _given(old, item.node, key[1]) if key is not None else []
            if not values or not all(_is_iterator(old, where, value, depth + 1) for where, value in values):
                return False
        elif (
            item.kind != "value"
            or item.path
            or not isinstance(item.node, ast.expr)
            or not _is_iterator(old, module, item.node, depth + 1)
        ):
            return False
    return True


def _is_builtin_iter(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "iter"


def _given(old: OldProgram, function: ast.AST, name: str) -> list[tuple[Module, ast.expr]]:
    """What the callers of a function give for a parameter."""
    return old.tensors.arguments(function, name)
