"""Take the number out of a tensor that holds one.

## What it does
`loss.data[0]` becomes `loss.item()` where the tensor certainly holds a single number: the result of a loss function or
of a reduction, or what `backward()` is called on.

## Why
Such tensors have no dimensions since PyTorch 0.4, and an index raises IndexError.

## Before
    loss.backward()
    total += loss.data[0]

## After
    loss.backward()
    total += loss.item()

## When it declines
Where the tensor may have dimensions: `scores.data[0]` is its first row. That place is reported.

## Leaving it out
Yes: the line stays and raises IndexError when the tensor has no dimensions.

## Source
https://pytorch.org/docs/stable/generated/torch.Tensor.item.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.edits import receiver
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.source.modules import Module
from amp_rules.text.actions import Replace

RULE = Rule("AMP505", "item", "The number in a tensor is taken out by item().", "modern", optional=True)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each ``.data[0]`` of a single number."""
    for module, node in old.nodes():
        value = _indexed(node)
        if value is None:
            continue
        assert isinstance(node, ast.Subscript)
        text = module.text(value)
        if old.tensors.is_single(module, value):
            yield change(RULE, module, node, f"`{text}` holds one number", Replace(node, receiver(".item()", 2)))
        elif old.tensors.of(module, value).rank is None and _imports_torch(module):
            old.leave(
                RULE,
                module,
                node,
                f"it is not certain that `{text}` holds a single number",
                f"if it does, write `{text}.item()`; if it has dimensions, the line is right",
            )


def _indexed(node: ast.AST) -> ast.expr | None:
    """``x`` in ``x.data[0]`` where that is read."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return None
    if not isinstance(node.slice, ast.Constant) or node.slice.value != 0 or isinstance(node.slice.value, bool):
        return None
    inner = node.value
    return inner.value if isinstance(inner, ast.Attribute) and inner.attr == "data" else None


def _imports_torch(module: Module) -> bool:
    return any(
        (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch")
        or (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "torch" for alias in node.names))
        for node in module.nodes
    )
