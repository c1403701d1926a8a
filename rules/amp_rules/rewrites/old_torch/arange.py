"""Count by arange.

## What it does
`torch.range(0, 9)` becomes `torch.arange(0.0, 10.0)` where its ends are whole numbers: both count in the default data
type.

## Why
`torch.range` includes its end, unlike Python's `range`, and is deprecated since PyTorch 0.2.

## Before
    positions = torch.range(0, 9)

## After
    positions = torch.arange(0.0, 10.0)

## When it declines
Where an end is computed or there is a step: the place is reported.

## Leaving it out
Yes: `torch.range` works, with a warning.

## Source
https://pytorch.org/docs/stable/generated/torch.range.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.source.resolver import names_of
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import substitute

RULE = Rule("AMP522", "arange", "Counting is done by arange.", "modern", optional=True, only_asked=True)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each ``torch.range`` between whole numbers."""
    for use in old.uses_of("torch.range"):
        if use.target != "torch.range" or use.call is None:
            continue
        torch = names_of(use.module).name_of("torch")
        ends = [end for item in use.call.args if (end := _whole(item)) is not None]
        text = use.module.text(use.call)
        if torch is None or len(ends) != 2 or len(use.call.args) != 2 or use.call.keywords:
            old.leave(
                RULE,
                use.module,
                use.call,
                f"`{text}` includes its end, and its numbers are floats",
                "use torch.arange with the end one step further, and give it dtype=torch.float32 to keep the floats",
            )
            continue
        first, last = ends
        code = f"{torch}.arange({float(first)}, {float(last + 1)})"
        message = f"`{text}` includes its end"
        yield change(RULE, use.module, use.call, message, Replace(use.call, substitute(code)))


def _whole(node: ast.expr) -> int | None:
    """The number that is written there, if it is a whole one."""
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    return sign * node.value if isinstance(node, ast.Constant) and type(node.value) is int else None
