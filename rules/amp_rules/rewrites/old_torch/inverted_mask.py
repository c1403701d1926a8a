"""Invert masks by ~.

## What it does
`1 - (a == b)` becomes `~(a == b)`: for comparisons and what is known to be a mask of `torch.bool`.

## Why
Comparisons give `torch.bool` since PyTorch 1.2, from which nothing can be subtracted: RuntimeError.

## Before
    wrong = (1 - (predicted == labels)).sum()

## After
    wrong = (~(predicted == labels)).sum()

## When it declines
Where the tensor is not known to be of `torch.bool`: of `torch.uint8` the subtraction is right and `~` is not.

## Leaving it out
Yes: the line stays and raises RuntimeError.

## Source
https://pytorch.org/docs/stable/generated/torch.logical_not.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from amp_rules.plan.arrays import Arrays
from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.roles.sites import Site
from amp_rules.text.actions import Replace

RULE = Rule("AMP513", "inverted-mask", "Masks are inverted by ~.", "modern", optional=True)

_ATOMS = (cst.Name, cst.Attribute, cst.Subscript, cst.Call)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each mask that is subtracted from 1."""
    arrays = Arrays(old.program)
    for module, node in old.nodes():
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
            continue
        if not isinstance(node.left, ast.Constant) or type(node.left.value) is not int or node.left.value != 1:
            continue
        if old.tensors.of(module, node.right).boolean and not _is_of_arrays(old, arrays, node):
            text = module.text(node.right)
            message = f"`{text}` is a mask of torch.bool, from which nothing can be subtracted"
            yield change(RULE, module, node, message, Replace(node, _inverted))


def _is_of_arrays(old: OldProgram, arrays: Arrays, node: ast.BinOp) -> bool:
    """Whether a mask may be one of NumPy, which takes it for numbers."""
    located = old.program.locate(node)
    if located is None:
        return False
    body, scope = located
    return arrays.may_be_of(Site(scope.module, scope, body, node))


def _inverted(node: cst.BaseExpression) -> cst.BaseExpression:
    operation = cst.ensure_type(node, cst.BinaryOperation)
    right = operation.right
    if not isinstance(right, _ATOMS) and not right.lpar:
        right = right.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.UnaryOperation(cst.BitInvert(), right, lpar=operation.lpar, rpar=operation.rpar)
