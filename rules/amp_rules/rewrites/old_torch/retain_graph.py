"""Keep the graph by the argument's present name.

## What it does
`loss.backward(retain_variables=True)` becomes `loss.backward(retain_graph=True)`.

## Why
The argument was renamed in PyTorch 0.2; the old name raises TypeError.

## Before
    loss_d.backward(retain_variables=True)

## After
    loss_d.backward(retain_graph=True)

## When it declines
Never.

## Leaving it out
Yes: the line stays and raises TypeError.

## Source
https://pytorch.org/docs/stable/generated/torch.Tensor.backward.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.edits import keyword_name
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.text.actions import Replace

RULE = Rule("AMP509", "retain-graph", "A graph is kept by retain_graph.", "modern", optional=True)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each backward pass with the old argument."""
    for module, node in old.nodes():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "backward":
            continue
        if any(item.arg == "retain_variables" for item in node.keywords):
            message = "`retain_variables` is called `retain_graph`"
            edit = keyword_name("retain_variables", "retain_graph")
            yield change(RULE, module, node, message, Replace(node, edit))
