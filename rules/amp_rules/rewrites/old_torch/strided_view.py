"""Flatten what was computed of a transposed tensor by reshape.

## What it does
`correct[:k].view(-1)` becomes `correct[:k].reshape(-1)` where `correct` was computed, element by element, of a
transposed tensor, and the result is only read.

## Why
Since PyTorch 1.5 what is computed element by element is laid out as its operands are. Rows of what came of a transposed
tensor are no longer one piece of memory, which `view` needs: RuntimeError. `reshape` copies there, and gives the same
view as before everywhere else.

## Before
    predicted = output.topk(5, 1)[1].t()
    correct = predicted.eq(labels.view(1, -1).expand_as(predicted))
    hits = correct[:5].view(-1).float().sum(0)

## After
    predicted = output.topk(5, 1)[1].t()
    correct = predicted.eq(labels.view(1, -1).expand_as(predicted))
    hits = correct[:5].reshape(-1).float().sum(0)

## When it declines
Where the view is kept or handed on: what is written to it would not reach the tensor behind it, were it a copy. Where
the tensor is not seen to come of a transposed one.

## Leaving it out
Yes: the line stays and raises RuntimeError.

## Source
https://pytorch.org/docs/stable/generated/torch.reshape.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.edits import last_name
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.text.actions import Replace
from amp_rules.torch import old_torch as old_names

RULE = Rule(
    "AMP523", "strided-view", "What is not one piece of memory is flattened by reshape.", "modern", optional=True
)

_MOST_STEPS = 20  # from a view back to the transposed tensor


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each view of rows that lie apart."""
    for module, node in old.nodes():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "view":
            continue
        if node.keywords or not any(_is_size(item) for item in node.args) or not _is_only_read(module, node):
            continue
        rows = node.func.value
        if isinstance(rows, ast.Subscript) and _Layout(old).is_computed_of_transposed(module, rows):
            message = f"`{module.text(rows)}` need not be one piece of memory, as `view` wants it"
            yield change(RULE, module, node, message, Replace(node.func, last_name("reshape")))


def _is_size(node: ast.expr) -> bool:
    """Whether an argument is a number, so that no type is asked for."""
    value = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(value, ast.Constant) and type(value.value) is int


def _is_only_read(module: Module, node: ast.Call) -> bool:
    """Whether the view is reduced at once, so that nothing can be written to it."""
    current: ast.AST = node
    while True:
        method = module.parents[current]
        call = module.parents[method]
        if not isinstance(method, ast.Attribute) or not isinstance(call, ast.Call) or call.func is not method:
            return False
        if method.attr in old_names.REDUCING:
            return True
        if method.attr not in old_names.CASTING:
            return False
        current = call


def _last_sure(module: Module, given: list[ast.expr], read: ast.expr) -> int:
    """The line of the last assignment that runs before a read whatever happens; those above it are overwritten.

    ``correct = correct.contiguous()``.
    """
    around = set(module.ancestors(read))
    return max(
        (
            item.lineno
            for item in given
            if item.lineno < read.lineno and _runs_first(module.parents[blocks.statement_of(module, item)], around)
        ),
        default=0,
    )


def _runs_first(suite_of: ast.AST, around: set[ast.AST]) -> bool:
    """Whether what stands in a block above a read, which the block is around, has run; of two branches one has."""
    return suite_of in around and not isinstance(suite_of, (ast.If, ast.Try))


class _Layout:
    """How the elements of tensors lie in memory."""

    def __init__(self, old: OldProgram) -> None:
        self._tensors = old.tensors
        self._steps = 0

    def is_computed_of_transposed(self, module: Module, node: ast.expr, *, computed: bool = False) -> bool:
        """Whether an expression is, or has rows of, something computed element by element of a transposed tensor."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            return False
        if isinstance(node, ast.Subscript):
            return self.is_computed_of_transposed(module, node.value, computed=computed)
        if isinstance(node, ast.Attribute) and node.attr == "T":
            return computed
        if isinstance(node, (ast.Name, ast.Attribute)):
            key = self._tensors.key(module, node)
            known = self._tensors.definitions(module).get(key, []) if key is not None else []
            given = [
                item.node
                for item in known
                if item.kind == "value" and not item.path and isinstance(item.node, ast.expr)
            ]
            first = _last_sure(module, given, node)
            return any(
                item.lineno >= first and self.is_computed_of_transposed(module, item, computed=computed)
                for item in given
            )
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            return any(self.is_computed_of_transposed(module, item, computed=True) for item in parts)
        if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.MatMult):
            return any(self.is_computed_of_transposed(module, item, computed=True) for item in (node.left, node.right))
        return isinstance(node, ast.Call) and self._of_call(module, node, computed=computed)

    def _of_call(self, module: Module, node: ast.Call, *, computed: bool) -> bool:
        if not isinstance(node.func, ast.Attribute):
            return False
        target = self._tensors.target(module, node.func)
        if target is None:
            operands = [node.func.value, *node.args]
        elif target.startswith("torch.") and target.count(".") == 1:
            operands = list(node.args)
        else:
            return False
        if node.func.attr in old_names.TRANSPOSING:
            return computed
        if node.func.attr not in old_names.ELEMENTWISE:
            return False
        return any(self.is_computed_of_transposed(module, item, computed=True) for item in operands)
