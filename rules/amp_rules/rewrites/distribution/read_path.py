"""Read the file that the main process has written.

## What it does
A path that differs between processes, and is read, goes through `amp.from_main_process(...)`; so does a folder with
the time in its name that is listed. Where a file with the time in its name is looked for, as by `os.path.exists`, the
time itself goes through it if all processes ask for that, else the path; with the name of the machine beside it, the
text that both are put into; with an identifier that is drawn beside it, `uuid.uuid4()`, that too. A file that each
process draws for its own batches stays each its own, and so does one that a batch names itself: `open(batch["path"])`.

## Why
The main process alone writes. A name made of its loss, of the time or of its number is another one on each process,
which then looks for a file that nobody has written.

## Before
    best = torch.load(f"best_{loss:.3f}.pt")

## After
    best = torch.load(amp.from_main_process(f"best_{loss:.3f}.pt"))

## When it declines
When only some processes come there (AMP294).

## Leaving it out
No: the other processes would stop for want of the file.

## Source
https://pytorch.org/docs/stable/generated/torch.load.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.remedies import Reduction, written
from amp_rules.plan.rule import Rule
from amp_rules.plan.run_folders import entered_by_each
from amp_rules.plan.sinks import Need
from amp_rules.torch.file_access import TEMPORARY
from amp_rules.torch.replication import CLOCKS, PROCESS

RULE = Rule("AMP213", "same-path", "All processes read what the main process has written.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each path."""
    for item in context.processes.agreed.reductions:
        if item.need is Need.PATH:
            message = f"`{item.text}` is the path that the main process has"
            if _is_no_path(context, item):
                message = f"`{item.text}` is what the main process has: it gets into a path"
            yield Change.written(RULE, item.module, item.node, message, written(context.vocabulary, item))
    processes = context.processes
    entered = entered_by_each(context.program, processes.paths, processes.file_order, processes.files.effects)
    for module, statement in entered:
        message = "hydra names the folder that each process runs in by its clock: all work in that of the main process"
        yield Change.written(RULE, module, statement, message, context.vocabulary.same_folder(module, statement))


def _is_no_path(context: Context, item: Reduction) -> bool:
    """Whether the time is taken, or an identifier that is drawn, and not yet what is made of it."""
    if not isinstance(item.node, ast.Call) or item.variable is not None:
        return False
    located = context.program.locate(item.node)
    return located is not None and bool(
        context.program.callee_names(item.node, located[1]) & (CLOCKS | PROCESS - TEMPORARY)
    )
