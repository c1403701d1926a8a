"""Let only the main process write files.

## What it does
Statements that save a checkpoint, an image or an array run under `if amp.is_main_process():`. Where they run a model,
`amp.on_main(save_image)(model(z), path)` lets all processes compute and one write. `amp.barrier()` stands before
statements that load what was saved.

## Why
Several processes that write one file at the same time leave a broken one.

## Before
    torch.save(state, "checkpoint.pt")

## After
    if amp.is_main_process():
        torch.save(state, "checkpoint.pt")

## When it declines
Never. Printing needs no guard: after `amp.init(ddp=True)`, `print` is silent on the other processes.

## Leaving it out
No: processes that write to one file leave a broken one.

## Source
https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.context import Change, Context, adjacent
from amp_rules.rewrite import Insert, Replace, Wrap, call_with
from amp_rules.rule import Rule

RULE = Rule("AMP205", "save-on-main-process", "Only the main process writes files.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield a guard for each group of statements that write files."""
    if context.distribution is None:
        return
    for module, first, last in adjacent(context.distribution.saves):
        header = context.code(module, "if {amp}.is_main_process():")
        message = f"`{module.text(first)}` is left to the main process"
        yield Change(RULE, module, first, message, [Wrap(first, last, header)])
    for module, statement in context.distribution.reads:
        code = context.code(module, "{amp}.barrier()")
        message = "the file is read once the main process has written it"
        yield Change(RULE, module, statement, message, [Insert(statement, code)])
    for site in context.distribution.main_calls:
        assert isinstance(site.node, ast.Call)
        edit = call_with(context.code(site.module, "{amp}.on_main"))
        message = f"`{site.module.text(site.node.func)}` is left to the main process; all compute what it is given"
        yield Change(RULE, site.module, site.node, message, [Replace(site.node.func, edit)])
