"""Training for int8: where the model is prepared for it, and where its ranges are frozen."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from amp_rules.flow.statements import is_main_guard
from amp_rules.flow.values import Value
from amp_rules.plan.batch_norms import BatchNorms
from amp_rules.plan.gradient_averaging import runs_once
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.quantizing.calibrating import Spot, calibration_at
from amp_rules.plan.quantizing.known_names import KnownNames
from amp_rules.plan.quantizing.places import Place
from amp_rules.plan.quantizing.uses import Uses, makes_optimizer
from amp_rules.plan.quantizing.why_not import NotQuantized, Remark
from amp_rules.plan.training_loops import TrainingLoop
from amp_rules.roles.kinds import is_loader_value
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

_MAX_CALLERS = 4
"""Functions between the loop of an epoch and that over the epochs; trainers have two."""
_ITERATORS = frozenset({"builtins.iter", "itertools.cycle"})
"""What gives the batches of a loader, from where it is."""


@dataclass(frozen=True)
class Freezing:
    """Where the last epoch begins.

    Attributes:
        module: the file.
        statement: the first of an epoch.
        condition: the source of what holds in the last one.
        model: the source of the model there.
    """

    module: Module
    statement: ast.stmt
    condition: str
    model: str


@dataclass(frozen=True)
class TrainingStart:
    """What is added before the training.

    Attributes:
        home: where the model is prepared, which is the line below or a later one.
        statement: what the first line follows.
        calibration: the source of the loader there.
        inputs: the source of a function that makes the model's input of a batch, where one is needed.
        freezing: where the ranges are frozen; None where the last epoch is not known.
    """

    home: Home
    statement: ast.stmt
    calibration: str
    inputs: str | None
    freezing: Freezing | None


def training_start(
    program: Program, home: Home, models: set[Value], loops: list[TrainingLoop], place: Place, *, joined_norms: bool
) -> tuple[TrainingStart, list[Remark]]:
    """What comes before the training, and what is to be known of it.

    Args:
        program: the program.
        home: where the model is prepared.
        models: what its variable may hold.
        loops: those of the training.
        place: where the training has ended.
        joined_norms: whether batch norm is to take the batches of all processes.

    Raises:
        NotQuantized: something is not understood, or stands in the way.
    """
    _check_home(program, home, place)
    if joined_norms:
        _check_norms(program, home, models)
    statement = _start(program, home, models)
    Uses(program, home, statement, models).check()
    known = KnownNames(program, Site(home.module, home.scope, home.body, statement))
    spot = Spot(home.module, home.body, known, f"where `{home.variable}` is prepared: it is to be made above")
    calibration, inputs = calibration_at(program, spot, loops, models)
    for loop in loops:
        values = program.flow.values(loop.use.loader, loop.scope)
        if not all(map(is_loader_value, values)) or _is_iterator(program, values):
            text = (
                f"`{loop.module.text(loop.use.loader)}` is read before the training too, and may give its batches once"
            )
            raise NotQuantized(loop.module, loop.use.loader, text)
    try:
        freezing = _freezing(program, home, models, loops)
    except NotQuantized as unclear:
        text = (
            f"the ranges of int8 are not frozen for the last epoch: {unclear.text}; call "
            "`freeze_observers()` of the unwrapped model before it"
        )
        return TrainingStart(home, statement, calibration, inputs, None), [Remark(unclear.module, unclear.node, text)]
    return TrainingStart(home, statement, calibration, inputs, freezing), []


def _check_home(program: Program, home: Home, place: Place) -> None:
    """Every way to the training must come by, once, and all that follows must go by the variable."""
    text = f"`{home.variable}`"
    if home.module is not place.module:
        raise NotQuantized(home.module, home.statement, f"{text} is made in another file than it is trained in")
    if home.before or home.is_optional:
        raise NotQuantized(home.module, home.statement, f"it is not seen where {text} is made")
    if not home.rebinds:
        raise NotQuantized(home.module, home.statement, f"{text} is kept elsewhere too, where another model would stay")
    around = list(blocks.enclosing(home.module, home.statement))
    if any(isinstance(item, (ast.If, ast.Try)) and not _is_guard(item) for item in around):
        raise NotQuantized(home.module, home.statement, f"{text} is made on a condition")
    if not runs_once(program, home.module, home.statement):
        raise NotQuantized(home.module, home.statement, f"{text} may be made several times")


def _start(program: Program, home: Home, models: set[Value]) -> ast.stmt:
    """What the model is prepared for int8 behind: where it is made, above its optimizer.

    Its home may be further down, where weights are loaded: those of the other model fit this one as well.
    """
    where = blocks.place(home.module, home.statement)
    before: list[ast.stmt] = []
    for item in where.suite[: where.index + 1]:
        nodes = blocks.walk_own(item)
        if any(isinstance(node, ast.Call) and makes_optimizer(program, node, home.scope, models) for node in nodes):
            told = [one for one in before if home.variable in blocks.reads(one) | blocks.writes(one)]
            return told[-1] if any(home.variable in blocks.writes(one) for one in before) else home.statement
        before.append(item)
    return home.statement


def _is_iterator(program: Program, values: set[Value]) -> bool:
    """Whether a variable holds ``iter(loader)``, which is the loader for all that its value says."""
    return any(
        isinstance(node, (ast.Assign, ast.AnnAssign))
        and isinstance(node.value, ast.Call)
        and bool(program.callee_names(node.value, scope) & _ITERATORS)
        and bool(values & program.flow.values(node.value, scope))
        for node, _, scope in program.nodes()
    )


def _is_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and is_main_guard(statement)


def _check_norms(program: Program, home: Home, models: set[Value]) -> None:
    norms = BatchNorms(program)
    if any(map(norms.are_in, program.with_parts(models))):
        raise NotQuantized(
            home.module,
            home.statement,
            f"`{home.variable}` has batch norm, which an exported graph does not synchronise over processes",
            "leave `--ddp` out, or say `--no-sync-bn`",
        )


def _freezing(program: Program, home: Home, models: set[Value], loops: Sequence[TrainingLoop]) -> Freezing:
    """Where the last epoch begins.

    Raises:
        NotQuantized: it is not known.
    """
    if len(loops) != 1:
        raise NotQuantized(home.module, home.statement, "the training has several loops")
    epochs = _epochs(program, loops[0])
    loop = epochs.node
    assert isinstance(loop, (ast.For, ast.AsyncFor, ast.While))
    last = _last(loop)
    written = {path for item in loop.body for path in blocks.writes(item)}
    if last is None or blocks.touches(set(last[1]), written) or epochs.module is not home.module:
        raise NotQuantized(epochs.module, loop, "it is not known which is the last round of this loop")
    model = _model_in(program, epochs, models, written)
    if model is None:
        raise NotQuantized(epochs.module, loop, "no variable holds the model here")
    return Freezing(epochs.module, loop.body[0], last[0], model)


def _epochs(program: Program, loop: TrainingLoop) -> Site:
    """The only loop around that of the batches."""
    site: Site = loop
    for _ in range(_MAX_CALLERS + 1):
        around = [item for item in blocks.enclosing(site.module, site.node) if isinstance(item, blocks.LOOPS)]
        if len(around) == 1:
            return Site(site.module, site.scope, site.body, around[0])
        info = program.function_of(site.body)
        callers = program.flow.callers(info) if info is not None else []
        if around or len(callers) != 1:
            break
        site = calling(callers[0])
    raise NotQuantized(loop.module, loop.node, "the loop over the epochs is not known")


def _last(loop: ast.stmt) -> tuple[str, list[str]] | None:
    """What holds in the last round of ``for epoch in range(start, end)``, and the paths that it rests on."""
    if not (isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) and loop.body[0].lineno > loop.lineno):
        return None
    head = loop.iter
    if not (isinstance(head, ast.Call) and blocks.path_of(head.func) == "range" and not head.keywords):
        return None
    if len(head.args) not in (1, 2):
        return None
    end = head.args[-1]
    if isinstance(end, ast.Constant) and isinstance(end.value, int):
        return f"{loop.target.id} == {end.value - 1}", [loop.target.id]
    if isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add) and ast.unparse(end.right) == "1":
        path, less = blocks.path_of(end.left), ""
        end = end.left
    else:
        path, less = blocks.path_of(end), " - 1"
    if path is None or not isinstance(end, (ast.Name, ast.Attribute)):
        return None
    return f"{loop.target.id} == {path}{less}", [loop.target.id, path]


def _model_in(program: Program, epochs: Site, models: set[Value], written: set[str]) -> str | None:
    """A variable of the model that the rounds of a loop read, and do not write."""
    own = set(program.nodes_of(epochs.body))
    for node in walk(epochs.node):
        if node in own and isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            path, values = blocks.path_of(node), program.flow.values(node, epochs.scope)
            if path is not None and values and values <= models and not blocks.touches({path}, written):
                return path
    return None
