"""Draw the same on all processes where that decides what is trained.

## What it does
A draw in a training step that chooses a task, a head or a layer, or the loader whose batch is taken, decides over a
step, sets a learning rate or is written to weights, goes through `amp.drawn_alike(...)`. A generator without a seed
that does so, or splits the data, is given `amp.same_seed()`, and a seed made of the time or of the process goes through
`amp.from_main_process(...)`.

## Why
While a batch is worked on each process draws random numbers of its own, so that noise and augmentation differ. With
another choice on each process they would train different parts of the model and wait for each other, and with other
noise on the weights they would go on with different models. With another split they would train on samples that
another one validates on.

## Before
    task = random.choice(tasks)
    loss = criterion(model(x, task), y)

## After
    task = amp.drawn_alike(random.choice)(tasks)
    loss = criterion(model(x, task), y)

## When it declines
Where a choice rests on the batch as well and cannot be averaged (AMP294).

## Leaving it out
No: the processes would train different parts of the model.

## Source
https://pytorch.org/docs/stable/notes/ddp.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.rule import Rule
from amp_rules.plan.sample_files import bodies_of_samples
from amp_rules.ranks.origins import Kind
from amp_rules.ranks.sources import has_seed
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.torch.replication import GENERATORS, SEEDED_BY_SYSTEM, SEEDS

RULE = Rule("AMP215", "drawn-alike", "What decides over training is drawn alike on all processes.", "distribution")

_OF_THE_PROCESS = frozenset({Kind.CLOCK, Kind.PROCESS})


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each draw that has to be the same, and each seed."""
    program, words = context.program, context.vocabulary
    for call, module in context.processes.agreed.alike.items():
        located = program.locate(call)
        if located is not None and program.callee_names(call, located[1]) & GENERATORS:
            message, written = f"`{module.text(call)}` has one seed on all processes", words.same_seed(module, call)
        else:
            message = f"`{module.text(call)}` draws the same on all processes"
            written = words.drawn_alike(module, call.func)
        yield Change.written(RULE, module, call, message, written)
    unseeded, seeds = _unseeded(program), _seeds(program, context.processes)
    of_workers = _of_workers(program) if unseeded or seeds else set()
    for site in unseeded:
        if site.body in of_workers:
            continue
        assert isinstance(site.node, ast.Call)
        message = f"`{site.module.text(site.node)}` sets one seed on all processes"
        yield Change.written(RULE, site.module, site.node, message, words.same_seed(site.module, site.node))
    for site in seeds:
        if site.body in of_workers:
            continue
        assert isinstance(site.node, ast.expr)
        message = f"`{site.module.text(site.node)}` is the main process's on all"
        yield Change.written(RULE, site.module, site.node, message, words.of_main_process(site.module, site.node))


def _unseeded(program: Program) -> list[Site]:
    """Calls that let the system seed the generators which all processes share."""
    found = []
    for site in program.calls_to(SEEDED_BY_SYSTEM):
        assert isinstance(site.node, ast.Call)
        # What a file does when it is imported comes before the start, at which all ranks get rank 0's random state.
        is_imported = isinstance(site.body, ast.Module) and site.module is not program.entry
        if not has_seed(site.node) and not is_imported:
            found.append(site)
    return found


def _seeds(program: Program, distribution: Distribution) -> list[Site]:
    """Seeds that are made of the clock or of the process."""
    found = []
    for site in program.calls_to(SEEDS | GENERATORS):
        assert isinstance(site.node, ast.Call)
        for given in [*site.node.args[:1], *(item.value for item in site.node.keywords)]:
            origins = distribution.agreed.ranks.origins(given)
            if any(origin.kind in _OF_THE_PROCESS for origin in origins):
                found.append(Site(site.module, site.scope, site.body, given))
    return found


def _of_workers(program: Program) -> set[ast.AST]:
    """The functions that run in a loader's worker process, where no other rank can be asked."""
    bodies = bodies_of_samples(program)
    return bodies | program.called_from(node for body in bodies for node in blocks.walk_body(body))
