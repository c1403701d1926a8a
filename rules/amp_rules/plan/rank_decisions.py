"""Why several processes are declined: places that have to be the same on all ranks, and that nothing makes so."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.file_guards import looks_at_files
from amp_rules.plan.file_names import line_of
from amp_rules.plan.shards.declined import TABLES
from amp_rules.plan.sinks import Need, Sink
from amp_rules.plan.weight_writes import WeightWrites
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.origins import Decisions, Kind, Origin
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.torch.gradients import GRADIENT

_WHY = {
    Kind.BATCH: "comes from the batches of one process",
    Kind.DRAW: "is drawn by each process for itself",
    Kind.GENERATOR: "comes from a generator that each process seeds by itself",
    Kind.CLOCK: "is read from the clock of each process",
    Kind.ORDER: "follows the order of a set, which differs between processes",
    Kind.ENVIRONMENT: "comes from an environment that each process steps by itself",
    Kind.PROCESS: "names one process, or says how its machine fares",
    Kind.FAILURE: "follows from what fails on some processes and not on the others",
}
_RECIPES = {
    Need.DECISION: "average the value over the ranks first: `amp.reduce_mean(value)`",
    Need.ROUNDS: "run the same number of iterations on all ranks: iterate over a DataLoader, or over a range of a "
    "number that "
    "is the same on all ranks, such as `amp.reduce_max(count)`",
    Need.RATE: "average the value over the ranks first: `amp.reduce_mean(value)`",
    Need.PATH: "use the main process's value: `amp.from_main_process(path)`, at a place that all processes reach",
    Need.MODEL: "use the main process's value: `amp.from_main_process(value)`, at a place that all processes reach",
    Need.WEIGHTS: "make the value the same on all ranks first: `amp.reduce_mean(value)` of a tensor, "
    "`amp.drawn_alike(function)(...)` of what is drawn",
}
_OF_FILES = (
    "let the main process try it, and send its answer to all: `if amp.is_main_process():` around it, and "
    "`amp.from_main_process(value)` after it"
)
_OF_LOOKS = (
    "let the main process check, and send its answer to all: `amp.from_main_process(value)`, at a place that "
    "all processes reach"
)
_OF_FLAGS = (
    "make the same decision on all ranks: `amp.reduce_max(flag)` holds where it does on any of them, "
    "`amp.reduce_min(flag)` "
    "where it does on all"
)
_OF_EPISODES = (
    "use `--no-ddp`; or let each rank take as many steps as the others between two updates, whatever its episodes do"
)


def reasons(distribution: Distribution) -> Iterator[Declined]:
    """Yield what is left of the places that have to be the same on all ranks; of one cause the first place alone."""
    said: set[Origin] = set()
    left = distribution.agreed.left
    waits: dict[ast.AST, Module] = {statement: module for module, statement, _ in distribution.file_order.barriers()}
    asked = {site.node: site.module for site in distribution.questions.told}
    waits.update(asked)
    tables = distribution.table_sharding
    lookups = tables.lookups if tables is not None else {}
    waits.update((site.node, site.module) for site in lookups.values())
    for sink in left:
        if any(_follows(sink, other, distribution.agreed.ranks) for other in left):
            continue
        cause = _cause(sink)
        if cause in said or (tables is not None and sink.node in tables.told):
            continue
        said.add(cause)
        message, recipe = _message(distribution.program, sink, waits, asked), _recipe(sink, cause, distribution)
        if sink.what in lookups:
            yield TABLES.decline(sink.module, sink.node, message, recipe)
            continue
        yield declining.decline(declining.LOCAL_DECISION, sink.module, sink.node, message, recipe)


def _recipe(sink: Sink, cause: Origin, distribution: Distribution) -> str:
    """What makes a place the same on all ranks."""
    if cause.kind is Kind.FAILURE:
        return _OF_FILES
    if looks_at_files(distribution.program, sink.node, sink.scope):
        return _OF_LOOKS
    if sink.need in (Need.DECISION, Need.ROUNDS) and cause.kind is Kind.ENVIRONMENT:
        return _OF_EPISODES
    if sink.need is Need.DECISION and not _weighs(sink.node):
        return _OF_FLAGS
    return _RECIPES[sink.need]


def _weighs(test: ast.expr) -> bool:
    """Whether a test compares numbers: the mean of flags is true as soon as one of them is."""
    while isinstance(test, ast.UnaryOp):
        test = test.operand
    if isinstance(test, ast.BoolOp):
        return all(map(_weighs, test.values))
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))


def _follows(sink: Sink, other: Sink, ranks: Ranks) -> bool:
    """Whether a place differs only as another one does, which decides whether it is reached: that one is to blame."""
    if other is sink or not sink.origins <= other.origins:
        return False
    deciding = ranks.decisions(blocks.statement_of(sink.module, sink.node))
    before = ranks.decisions(blocks.statement_of(other.module, other.node))
    return _has(deciding, other.node) and not _has(before, sink.node)


def _has(decisions: Decisions, node: ast.AST) -> bool:
    return any(item.node is node for item in decisions)


def _message(program: Program, sink: Sink, waits: Mapping[ast.AST, Module], asked: Collection[ast.AST]) -> str:
    text, cause = sink.module.text(sink.node), _cause(sink)
    consequence = _CONSEQUENCE[sink.need]
    if sink.need is Need.WEIGHTS and isinstance(sink.what, ast.Call):
        kept = WeightWrites(program).kept_tensor(sink.what, sink.scope)
        if kept is not None:
            consequence = f"is written to `{sink.module.text(kept)}`, which the model keeps"
    if sink.need is Need.WEIGHTS and _sets_gradient(sink.what):
        consequence = "becomes the gradient by which weights of the model step"
    if isinstance(sink.what, (ast.stmt, ast.expr)) and sink.what in waits:
        place = line_of(program, waits[sink.what], sink.what.lineno, sink.module)
        consequence = f"decides whether the processes wait for each other at {place}"
        if sink.what in asked:
            consequence = f"decides whether a process comes to the question at {place}, which one is to ask for all"
    if cause.node is sink.node and cause.kind is Kind.FAILURE:
        return f"`{text}` may fail on some processes and not on the others, and {consequence}"
    return f"`{text}` differs between processes, and {consequence}: it {_because(program, cause, sink)}"


def _sets_gradient(write: ast.AST) -> bool:
    """``p.grad = x``."""
    targets = write.targets if isinstance(write, ast.Assign) else [getattr(write, "target", None)]
    return any(isinstance(item, ast.Attribute) and item.attr == GRADIENT for item in targets)


def _cause(sink: Sink) -> Origin:
    """What is said to make a place differ: of several causes one of its own function first.

    What stands elsewhere comes through objects that others change as well.
    """
    here = blocks.body_of(sink.module, sink.node)

    def key(origin: Origin) -> tuple[bool, bool, int, int, str, str]:
        last = origin.kind is Kind.FAILURE
        near = origin.kind is Kind.ENVIRONMENT or blocks.body_of(origin.module, origin.node) is here
        return last, not near, _ORDER.index(origin.kind), origin.line, str(origin.module.path), origin.text

    return min(sink.origins, key=key)


# What fails alone comes last: whatever a process does after a failure rests on that, and mostly on more besides.
_ORDER = [Kind.ENVIRONMENT, Kind.GENERATOR, Kind.CLOCK, Kind.PROCESS, Kind.BATCH, Kind.DRAW, Kind.ORDER, Kind.FAILURE]
_CONSEQUENCE = {
    Need.DECISION: "decides what is trained",
    Need.ROUNDS: "sets the number of steps",
    Need.RATE: "sets the learning rate",
    Need.PATH: "names a file that is read",
    Need.WEIGHTS: "is written to the model's weights",
    Need.MODEL: "is what a model is made with",
}


def _because(program: Program, origin: Origin, sink: Sink) -> str:
    return f"{_WHY[origin.kind]} (`{origin.text}`, {line_of(program, origin.module, origin.line, sink.module)})"
