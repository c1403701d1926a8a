"""Let threads that a model starts compute under its autocast.

## What it does
A function that is handed to a thread within a region of autocast is bound to that region:
`pool.submit(amp.in_this_region(self.branch), x)`, `Thread(target=amp.in_this_region(work))`.

## Why
Autocast holds for the thread that enters it. In another one half activations meet FP32 weights, and torch raises "mat1
and mat2 must have the same dtype"; a `Thread` dies of it without a word to its caller.

## Before
    left = pool.submit(self.left, x)

## After
    left = pool.submit(amp.in_this_region(self.left), x)

## When it declines
Never.

## Leaving it out
No: layers raise on the mixture of types, in a thread where nobody may see it.

## Source
https://pytorch.org/docs/stable/amp.html#torch.autocast
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.rule import Rule
from amp_rules.roles.threads import handed_over

RULE = Rule("AMP114", "threads-in-the-region", "Threads compute under the model's autocast.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each function that a thread is given within a region."""
    for site in context.precision.nodes(context.program):
        function = handed_over(context.program, site.node, site.scope) if isinstance(site.node, ast.Call) else None
        if function is not None:
            message = (
                f"`{site.module.text(function)}` runs in another thread, to which autocast does not reach by itself"
            )
            written = context.vocabulary.in_other_threads(site.module, function)
            yield Change.written(RULE, site.module, function, message, written)
