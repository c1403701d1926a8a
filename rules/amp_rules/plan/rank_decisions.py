"""Why several processes are declined: places that have to be the same on all ranks, and that nothing makes so."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.sinks import Need, Sink
from amp_rules.ranks.origins import Kind, Origin

_WHY = {
    Kind.BATCH: "comes from the batches of one process",
    Kind.DRAW: "is drawn by each process for itself",
    Kind.GENERATOR: "comes from a generator that each process seeds by itself",
    Kind.CLOCK: "is read from the clock of each process",
    Kind.ORDER: "follows the order of a set, which each process has its own of",
    Kind.ENVIRONMENT: "comes from an environment that each process steps by itself",
    Kind.PROCESS: "names one process or its machine",
    Kind.FAILURE: "follows from what fails on some processes and not on the others",
}
_RECIPES = {
    Need.DECISION: "average the value over the ranks first: `amp.reduce_mean(value)`",
    Need.ROUNDS: "let all ranks go through as many rounds: iterate over a DataLoader, or over a range of a number that "
    "is the same on all ranks, such as `amp.reduce_max(count)`",
    Need.RATE: "average the value over the ranks first: `amp.reduce_mean(value)`",
    Need.PATH: "take the main process's: `amp.from_main_process(path)`, where all processes come",
    Need.WEIGHTS: "make the value the same on all ranks first: `amp.reduce_mean(value)` of a tensor, "
    "`amp.drawn_alike(function)(...)` of what is drawn",
}
_OF_FILES = (
    "let the main process try it, and give all its answer: `if amp.is_main_process():` around it, and "
    "`amp.from_main_process(value)` after it"
)


def reasons(distribution: Distribution) -> Iterator[Declined]:
    """Yield what is left of the places that have to be the same on all ranks; of one cause the first place alone."""
    said: set[Origin] = set()
    for sink in distribution.agreed.left:
        cause = _cause(sink)
        if cause in said:
            continue
        said.add(cause)
        recipe = _OF_FILES if cause.kind is Kind.FAILURE else _RECIPES[sink.need]
        message = _message(sink, distribution.waits)
        yield declining.decline(declining.LOCAL_DECISION, sink.module, sink.node, message, recipe)


def _message(sink: Sink, waits: Collection[ast.AST]) -> str:
    text, cause = sink.module.text(sink.node), _cause(sink)
    consequence = _CONSEQUENCE[sink.need]
    if sink.what in waits:
        consequence = f"decides whether the processes wait for each other at line {getattr(sink.what, 'lineno', 1)}"
    if cause.node is sink.node and cause.kind is Kind.FAILURE:
        return f"`{text}` may fail on some processes and not on the others, and {consequence}"
    return f"`{text}` differs between processes, and {consequence}: it {_because(cause)}"


def _cause(sink: Sink) -> Origin:
    return min(sink.origins, key=lambda item: (_ORDER.index(item.kind), item.line))


_ORDER = [Kind.FAILURE, Kind.ENVIRONMENT, Kind.GENERATOR, Kind.CLOCK, Kind.PROCESS, Kind.BATCH, Kind.DRAW, Kind.ORDER]
_CONSEQUENCE = {
    Need.DECISION: "decides what is trained",
    Need.ROUNDS: "says how many steps are taken",
    Need.RATE: "sets the learning rate",
    Need.PATH: "names a file that is read",
    Need.WEIGHTS: "is written to the model's weights",
}


def _because(origin: Origin) -> str:
    return f"{_WHY[origin.kind]} (`{origin.module.text(origin.node)}`, line {origin.line})"
