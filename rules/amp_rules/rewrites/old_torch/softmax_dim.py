"""Say which dimension a softmax is over.

## What it does
`F.softmax(x)` becomes `F.softmax(x, dim=1)`, or `dim=0`, where the number of dimensions of `x` is known. So does
`log_softmax` and `softmin`.

## Why
Without `dim` PyTorch chooses by the number of dimensions, 0 for one and three of them and 1 for two and four, and
warns: an image without its batch gives another result than one with it.

## Before
    x = x.view(-1, 320)
    return F.log_softmax(self.fc(x))

## After
    x = x.view(-1, 320)
    return F.log_softmax(self.fc(x), dim=1)

## When it declines
Where the number of dimensions is not known: the place is reported.

## Leaving it out
Yes: PyTorch still chooses, with a warning.

## Source
https://pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import add_keyword
from amp_rules.torch import old_torch as old_names

RULE = Rule("AMP510", "softmax-dim", "A softmax names its dimension.", "modern", optional=True, only_asked=True)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each softmax over a tensor of known rank."""
    for use in old.uses_of("torch.nn.functional."):
        call = use.call
        if use.target.rpartition(".")[2] not in old_names.SOFTMAX or call is None or len(call.args) != 1:
            continue
        if isinstance(call.args[0], ast.Starred) or any(item.arg in ("dim", None) for item in call.keywords):
            continue
        rank = old.tensors.of(use.module, call.args[0]).rank
        text = use.module.text(call.args[0])
        if rank is None:
            old.leave(
                RULE,
                use.module,
                call,
                f"the dimension of `{use.module.text(call)}` is chosen by the number of dimensions of `{text}`",
                "write dim=1 if it has two or four of them, dim=0 if it has one or three",
            )
        else:
            dim = 0 if rank in (0, 1, 3) else 1
            message = f"`{text}` has {rank} dimensions"
            yield change(RULE, use.module, call, message, Replace(call, add_keyword(f"dim={dim}")))
