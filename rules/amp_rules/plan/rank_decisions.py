"""Why several processes are declined: places that have to be the same on all ranks, and that nothing makes so."""

from __future__ import annotations

from collections.abc import Iterator

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


def reasons(distribution: Distribution) -> Iterator[Declined]:
    """Yield what is left of the places that have to be the same on all ranks; of one cause the first place alone."""
    said: set[Origin] = set()
    for sink in distribution.agreed.left:
        cause = _cause(sink)
        if cause in said:
            continue
        said.add(cause)
        yield declining.decline(declining.LOCAL_DECISION, sink.module, sink.node, _message(sink), _RECIPES[sink.need])


def _message(sink: Sink) -> str:
    text = sink.module.text(sink.node)
    return f"`{text}` differs between processes, and {_CONSEQUENCE[sink.need]}: it {_because(_cause(sink))}"


def _cause(sink: Sink) -> Origin:
    return min(sink.origins, key=lambda item: (_ORDER.index(item.kind), item.line))


_ORDER = [Kind.ENVIRONMENT, Kind.GENERATOR, Kind.CLOCK, Kind.PROCESS, Kind.BATCH, Kind.DRAW, Kind.ORDER]
_CONSEQUENCE = {
    Need.DECISION: "decides what is trained",
    Need.ROUNDS: "says how many steps are taken",
    Need.RATE: "sets the learning rate",
    Need.PATH: "names a file that is read",
    Need.WEIGHTS: "is written to the model's weights",
}


def _because(origin: Origin) -> str:
    return f"{_WHY[origin.kind]} (`{origin.module.text(origin.node)}`, line {origin.line})"
