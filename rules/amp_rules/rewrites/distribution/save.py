"""Let only the main process write files.

## What it does
Statements that save a checkpoint, an image or an array, and those that remove, move or copy files, run under
`if amp.is_main_process():`. Where they run a model, draw or take something off a list,
`amp.on_main(os.remove)(old.pop())` lets all processes compute and one write. A file that stays open is opened by
`amp.on_main(open)(path, "w")`: what others write to it goes nowhere. `amp.barrier()` stands before statements that read
or look for what was written. Functions that nothing in the program calls stay as they are. An object of a library that
is given a file's path by `write`, `export` or the like writes one too: `song.write("song.mid")`. What is sent to
others by `requests.post`, mail or a chat is sent once, unless the script needs the answer elsewhere. Loops and looks at
files that serve such statements alone go with them; so do folders with the time in their names, unless all processes
have the time of the main process.

## Why
Several processes that write one file at the same time leave a broken one, and those that tidy up remove what another
has just written.

## Before
    torch.save(state, "checkpoint.pt")

## After
    if amp.is_main_process():
        torch.save(state, "checkpoint.pt")

## When it declines
Where a file is written and read through one object, where the result of a call that changes files is used, and where a
data set keeps files for its samples: AMP297. Printing needs no guard: after
`amp.init(ddp=True)`, `print` is silent on the other processes. Files in a folder of `tempfile` are each process's own.

## Leaving it out
No: processes that write to one file leave a broken one.

## Source
https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context, adjacent
from amp_rules.plan.declining import Declined
from amp_rules.plan.file_notes import of_rows
from amp_rules.plan.folders_of_told_times import made_by_each
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.plan.sinks import Need

RULE = Rule("AMP205", "save-on-main-process", "Only the main process writes files.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield a guard for each group of statements that write files."""
    files = context.processes.files
    told = {item.node for item in context.processes.agreed.reductions if item.need is Need.PATH}
    each = made_by_each(context.program, context.processes.paths, files.effects, told)
    saves = [(module, statement) for statement, module in files.statements.items() if statement not in each]
    for module, first, last in adjacent(saves):
        message = f"`{module.text(first)}` runs on the main process only"
        yield Change.written(RULE, module, first, message, context.vocabulary.on_main_process(module, first, last))
    for module, statement, message in context.processes.file_order.barriers():
        yield Change.written(RULE, module, statement, message, context.vocabulary.barrier(module, statement))
    for site in files.calls:
        assert isinstance(site.node, ast.expr)
        message = f"`{site.module.text(site.node)}` runs on the main process only; all processes compute its arguments"
        written = context.vocabulary.called_on_main(site.module, site.node)
        yield Change.written(RULE, site.module, site.node, message, written)


def reasons(context: Context) -> Iterator[Declined]:
    """Yield what cannot be left to one process."""
    yield from context.processes.files.reasons
    order = context.processes.file_order
    order.barriers()
    yield from order.reasons


def notes(context: Context) -> Iterator[Note]:
    """Yield what a file that is written in each step holds."""
    yield from of_rows(context.program, context.processes.files)
