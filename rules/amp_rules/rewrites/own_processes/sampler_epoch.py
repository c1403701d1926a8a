"""Tell a distributed sampler the epoch.

## What it does
At the head of the loop over epochs, the sampler of the loader that trains is told its number by
`sampler.set_epoch(epoch)`, or by `loader.sampler.set_epoch(epoch)` where only the loader is at hand. Where each epoch
makes the sampler anew, the line stands before the loop over batches; where there may be no such sampler, a test stands
before it. A call that the first process alone makes does not count: the others have the order of the first epoch.
Where no loop counts the epochs, `sampler.set_epoch(sampler.epoch + 1)` stands between two rounds: below a loop over
batches that a `while` runs again, or above the `iter(loader)` that follows a `StopIteration`, and above those that a
loop runs again beside it. Without such a one, batches that are taken by `next` begin with their loop over epochs.

## Why
The sampler shuffles by `seed + epoch`, and its epoch stays 0 until it is told. Every epoch has the same order then, and
a process never sees the samples of the others.

## Before
    for epoch in range(epochs):
        for x, y in loader:

## After
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:

## When it declines
Where the sampler is told an epoch in a loop already, where it does not shuffle, and where the loop over epochs, its
number or the sampler there is not known (AMP288).

## Leaving it out
Yes: the script then has the same order in every epoch, as it did.

## Source
https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.own_ddp.epoch_loops import EpochLoop, epoch_loops, number_of
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rounds import rounds
from amp_rules.plan.own_ddp.samplers import Sampler, is_for_evaluation, never_told, samplers, told
from amp_rules.plan.rule import Rule
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Insert, Replace
from amp_rules.text.expression_edits import substitute

RULE = Rule(
    "AMP231",
    "sampler-epoch",
    "The distributed sampler gets the epoch.",
    "distribution",
    optional=True,
    together=True,
)


def changes(own: OwnDdp) -> Iterator[Change]:
    """Yield a line at the head of each loop over epochs."""
    done: set[ast.AST] = set()
    for site in never_told(own):
        own.leave(
            RULE,
            site.module,
            site.node,
            "set_epoch is not called on this sampler: each round over its loader has the order of the first; call it "
            "at the head of the loop over epochs",
        )
    shuffling = [sampler for sampler in samplers(own) if sampler.shuffles]
    for sampler in shuffling:
        if told(own, sampler):
            continue
        # An evaluation may run backward, too: for an attack, or to look at gradients.
        if is_for_evaluation(sampler) and not all(map(is_for_evaluation, shuffling)):
            continue
        found = [(use, list(epoch_loops(own, use))) for use in sampler.uses]
        if not any(loops for _, loops in found):
            between = list(_by_rounds(own, sampler))
            yield from between
            if not between:
                # Beside a loop over epochs, what a container holds for another use need not be of this sampler.
                use = sampler.uses[0]
                text = "where its sampler, which shuffles, gets to know the epoch was not found: without"
                own.leave(RULE, use.module, use.loader, f"{text} `set_epoch` each round has the order of the first")
        for _, loops in found:
            for loop in loops:
                if loop.node in done:
                    continue
                done.add(loop.node)
                yield from _change(own, sampler, loop)


def _by_rounds(own: OwnDdp, sampler: Sampler) -> Iterator[Change]:
    """Yield a line between the rounds over its loader that no loop over epochs counts."""
    told: set[ast.AST] = set()
    for item in (found for use in sampler.uses for found in rounds(own, use)):
        line = sampler.line_at(own, item, item.loader, None) if item.node not in told else None
        if line is not None:
            told.add(item.node)
            message = f"`{line.splitlines()[-1].strip()}`: another order in each round"
            yield Change(RULE, item.module, item.node, message, [Insert(item.statement, line, after=item.is_over)])


def _change(own: OwnDdp, sampler: Sampler, loop: EpochLoop) -> Iterator[Change]:
    number = number_of(own, loop)
    line = sampler.line_at(own, loop, loop.loader, number.name) if number is not None else None
    assert isinstance(loop.node, (ast.For, ast.While))
    place = loop.node.body[0]
    if number is not None and line is None:
        # A sampler that is made anew in each epoch is told once it is there.
        later = _before_the_batches(loop, number.name)
        if later is not None:
            place, at = later, Site(loop.module, loop.scope, loop.body, later)
            line = sampler.line_at(own, at, loop.loader, number.name)
    if number is None or line is None:
        call = f"set_epoch({number.name if number is not None else 'epoch'})"
        text = f"set_epoch is not called, and the sampler may not be in scope here: call its `{call}` by hand"
        own.leave(RULE, loop.module, loop.node, text)
        return
    if number.renames is not None:
        what = f"`{number.name}`, for the sampler"
        yield Change(RULE, loop.module, number.renames, what, [Replace(number.renames, substitute(number.name))])
    message = f"`{line.splitlines()[-1].strip()}`: another order in each epoch"
    yield Change(RULE, loop.module, place, message, [Insert(place, line)])


def _before_the_batches(loop: EpochLoop, number: str) -> ast.stmt | None:
    """The statement of a loop over epochs that goes through the loader, where the number is what it was at the head."""
    for item in loop.node.body if isinstance(loop.node, (ast.For, ast.While)) else ():
        if any(node is loop.loader for node in walk(item)):
            return item
        if blocks.touches({number}, blocks.writes(item)):
            return None
    return None
