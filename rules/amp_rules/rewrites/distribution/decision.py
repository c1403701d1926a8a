"""Decide alike on all processes.

## What it does
A number of a process's own batches that decides what is trained goes through `amp.reduce_mean(...)`: where it is made,
or in the test. So does a number that decides through other variables, functions, counters or exceptions. What each
process reads from its own clock goes through `amp.from_main_process(...)`. A test between two epochs goes through
`amp.from_main_process(...)` too, if no mean can be taken before it: `if not is_best:`, where a method returned
`is_best` among others.

An exception handler may continue after a failed step, for example after running out of memory. With several processes
it now raises the error again: `if amp.world_size() > 1: raise`. Otherwise a process that fails alone would skip a step
that the others wait for.

## Why
Each process sees its own batches. Where one skips a step that another takes, or stops earlier, the others
wait for it for ever. The mean is the number of all batches together, and NaN where it is NaN on one of them.

## Before
    loss_value = loss.item()
    if loss_value > 10:
        continue

## After
    loss_value = amp.reduce_mean(loss.item())
    if loss_value > 10:
        continue

## When it declines
When a mean would not be right: of counts that say whether a process has anything to compute with, of flags within an
epoch, and of what is no number (AMP294). A test between epochs that says itself whether steps are taken declines too:
each process may have collected samples of its own for them. So does the width of a model, or whatever else it is made
with, that the batches of one process have chosen.

## Leaving it out
No: the processes would wait for each other.

## Source
https://pytorch.org/docs/stable/notes/ddp.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from amp_rules.plan.context import Change, Context
from amp_rules.plan.remedies import Reduction, written
from amp_rules.plan.rule import Rule
from amp_rules.plan.sinks import Need
from amp_rules.source import blocks
from amp_rules.source.resolver import free_name
from amp_rules.source.syntax import last_name

RULE = Rule("AMP211", "same-decision", "All processes decide alike over training.", "distribution")

_NEEDS = (Need.DECISION, Need.ROUNDS, Need.WEIGHTS)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each number that decides."""
    decisions = [item for item in context.processes.agreed.reductions if item.need in _NEEDS]
    together = _read_twice(decisions)
    for items in together.values():
        first = items[0]
        module = first.module
        statement = blocks.statement_of(module, first.node)
        name = free_name(module, [f"mean_{last_name(first.node)}", f"{last_name(first.node)}_of_all"])
        message = f"`{first.text}` is the mean over the processes, so that all decide alike"
        nodes = [item.node for item in items if isinstance(item.node, ast.expr)]
        once = context.vocabulary.reduced_once(module, statement, nodes, name)
        yield Change.written(RULE, module, first.node, message, once)
    mended = {item.node for items in together.values() for item in items}
    for item in decisions:
        if item.node not in mended:
            whose = "the main process's" if item.is_taken else "the mean over the processes"
            message = f"`{item.text}` is {whose}, so that all decide alike"
            yield Change.written(RULE, item.module, item.node, message, written(context.vocabulary, item))
    for module, handler in context.processes.swallowed:
        message = "where one process leaves out a step that has failed, the others would wait for it for ever"
        again = context.vocabulary.raised_in_several(module, handler.body[0])
        yield Change.written(RULE, module, handler, message, again)


def _read_twice(items: Sequence[Reduction]) -> dict[tuple[ast.stmt, str], list[Reduction]]:
    """Numbers in variables that one test reads several times: ``if torch.isnan(loss) or torch.isinf(loss)``."""
    found: dict[tuple[ast.stmt, str], list[Reduction]] = {}
    for item in items:
        if item.is_taken or item.need is not Need.DECISION or not isinstance(item.node, (ast.Name, ast.Attribute)):
            continue
        statement = blocks.statement_of(item.module, item.node)
        if isinstance(statement, ast.If) and not blocks.is_elif(item.module, statement):
            found.setdefault((statement, ast.dump(item.node)), []).append(item)
    return {
        key: same
        for key, same in found.items()
        if len({item.node for item in same}) > 1 and any(map(_is_asked_first, same))
    }


def _is_asked_first(item: Reduction) -> bool:
    """Whether the test reads a number whatever else it finds: not behind ``loss is not None and``."""
    below: ast.AST = item.node
    for parent in item.module.ancestors(item.node):
        if isinstance(parent, ast.stmt):
            return True
        if isinstance(parent, ast.BoolOp) and parent.values[0] is not below:
            return False
        if isinstance(parent, ast.IfExp) and parent.test is not below:
            return False
        if isinstance(parent, (ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)):
            return False
        below = parent
    return False
