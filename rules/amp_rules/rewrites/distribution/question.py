"""Ask once, and tell all processes the answer.

## What it does
`input(...)` becomes `amp.from_main_process(amp.on_main(input)(...))`: the main process asks, and all go on with its
answer. Where nothing uses the answer, as in `input("Press Enter")`, it is `amp.on_main(input)(...)`. So it is with
`getpass`, the questions of click and typer, and what is read from the standard input.

## Why
Each process would ask, and they would take the lines that are typed from each other: one removes a folder that another
one goes on with. The others wait for the answer, under NCCL for ten minutes.

## Before
    if input("Delete it? ") == "y":
        shutil.rmtree(folder)

## After
    if amp.from_main_process(amp.on_main(input)("Delete it? ")) == "y":
        if amp.is_main_process():
            shutil.rmtree(folder)

## When it declines
When not all processes come to the question, or not once they have joined, and where the script goes on without an
answer, in the handler of an `EOFError` (AMP294).

## Leaving it out
No: the processes would go on with other answers.

## Source
https://docs.python.org/3/library/functions.html#input
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.declining import Declined
from amp_rules.plan.rule import Rule

RULE = Rule("AMP218", "asked-once", "The main process asks, and all go on with its answer.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each question."""
    questions, words = context.processes.questions, context.vocabulary
    for site in questions.told:
        assert isinstance(site.node, ast.Call)
        message = f"`{site.module.text(site.node.func)}` asks on the main process, and all have its answer"
        yield Change.written(RULE, site.module, site.node, message, words.asked_on_main(site.module, site.node))
    for site in questions.unheard:
        assert isinstance(site.node, ast.Call)
        message = f"`{site.module.text(site.node.func)}` asks on the main process only"
        yield Change.written(RULE, site.module, site.node, message, words.called_on_main(site.module, site.node.func))


def reasons(context: Context) -> Iterator[Declined]:
    """Yield questions that cannot be left to one process."""
    yield from context.processes.questions.reasons()
