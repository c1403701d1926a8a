"""Numbers of what one process sees: what is to be known of them, the loops that make them, and which are of all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.training_loops import TrainingLoop
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

ADDS_UP = (
    "adds up the batches of one process: what is shown of it covers only rank 0's share of the data",
    "add up the batches of one process: what is shown of them covers only rank 0's share of the data",
)
"""What is to be known of a sum, and of several."""


OF_ONE_BATCH = (
    "is of one process's batch: what is shown is no mean over the processes",
    "are of one process's batch: what is shown are no means over the processes",
)
"""What is to be known of a number of a single batch, and of several."""

GETS_NUMBERS = (
    "gets the numbers of one process: what it shows covers only rank 0's share of the data",
    "get the numbers of one process: what they show covers only rank 0's share of the data",
)
"""What is to be known of a meter or a list, and of several."""


@dataclass(frozen=True)
class Told:
    """Something that is shown and that counts what one process sees.

    Attributes:
        site: where.
        name: its text in the script.
        one: what is to be known of it.
        several: the same of several.
    """

    site: Site
    name: str
    one: str
    several: str


def all_loops(processes: Distribution) -> Iterator[TrainingLoop | BatchLoop]:
    """Yield the loops over shared loaders, and those that take their batches from one by hand."""
    yield from processes.loops
    told: set[ast.AST] = {loop.loop for loop in processes.loops}
    for site in processes.data.loops:
        if site.node not in told and isinstance(site.node, (ast.For, ast.While)):
            told.add(site.node)
            yield BatchLoop(site.module, site.scope, site.body, site.node, site.node)


def of_the_share(processes: Distribution, loop: TrainingLoop | BatchLoop) -> list[ast.AST]:
    """The nodes that run in each round, without what evaluates data that each process sees in full."""
    heads = {use.loader for use in processes.data.evaluated}
    whole = {
        node
        for item in loop.inner
        if isinstance(item, (ast.For, ast.AsyncFor)) and not heads.isdisjoint(walk(item.iter))
        for node in walk(item)
    }
    whole |= loop.only_evaluating if isinstance(loop, TrainingLoop) else set()
    return [node for node in loop.inner if node not in whole]


Averaged = tuple[set[ast.AST], set[tuple[ast.AST, str | None]]]


def averaged_over_ranks(processes: Distribution) -> Averaged:
    """What becomes a mean over the ranks: expressions, and variables with the functions where they do."""
    reductions = [item for item in processes.agreed.reductions if not item.is_taken]
    return (
        {item.node for item in reductions if item.variable is None},
        {(blocks.body_of(item.module, item.node), item.variable) for item in reductions if item.variable is not None},
    )


def is_of_all(processes: Distribution, node: ast.AST, place: Site) -> bool:
    """Whether a number is made of what the script itself averages over the processes."""
    if not processes.exchanges:
        return False
    meets = processes.program.closure(lambda item: item in processes.exchanges)
    made = [
        value
        for item in walk(node)
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load)
        for value in assigned(processes.program, item, place.scope)
    ]
    return any(map(meets, [node, *made]))
