"""Draw different batches on each process.

## What it does
Puts `amp.seed_by_rank()` before the training loop of a script that draws its batches from the data at random: by a
function, or in the loop itself, `x = data[torch.randint(n, (size,))]`. So it does where no data are behind what is
drawn, as with the points at which a differential equation must hold, `x = torch.rand(count, 2)`, and the samples that
scikit-learn makes, `make_moons(64, noise=0.1)`, without a seed; also where the function that gives the loss draws them.

## Why
The processes start from the same random state, so that splits and weights agree; batches drawn from it
would be the same on all of them. A loop over a loader needs no such line: while a batch is worked on, each process
draws numbers of its own for noise, dropout masks and augmentation.

Where rows are shuffled once above the loop, `np.random.shuffle(rows)`, and the loop takes slices of them in turn, the
line stands above the shuffle: each process has an order of its own. Else all would have the same slices until rows are
shuffled again.

Where such a loop is run several times, for folds of the data say, `amp.seed_alike()` goes back before each.

## Before
    while True:
        x, y = get_batch("train")

## After
    amp.seed_by_rank()
    while True:
        x, y = get_batch("train")

## When it declines
When the batches are slices in a fixed order, when a model is given anything besides what the round draws, as the whole
data with noise on it, or when the round sets the random state (AMP291).

## Leaving it out
No: the processes would draw the same batches.

## Source
https://pytorch.org/docs/stable/notes/randomness.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from amp_rules.plan.context import Change, Context
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.rule import Rule
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.data import SHUFFLES_IN_PLACE
from amp_rules.torch.varying import DRAWN

RULE = Rule("AMP208", "seed-by-rank", "Each process draws batches of its own.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an insertion before each loop of random batches, and one in each loop around it."""
    seeds = _seeds(context.program, context.processes)
    for module, statement, _ in seeds:
        message = "from here on each process draws its own batches"
        yield Change.written(RULE, module, statement, message, context.vocabulary.seed_by_rank(module, statement))
    around = {loop.node: loop for _, _, loops in seeds for loop in loops}
    for loop in around.values():
        first = loop.node.body[0]  # type: ignore[attr-defined]
        message = "what is drawn here, a split or weights, is the same on all processes"
        yield Change.written(RULE, loop.module, first, message, context.vocabulary.seed_alike(loop.module, first))


def _seeds(program: Program, distribution: Distribution) -> list[tuple[Module, ast.stmt, list[Site]]]:
    """The outermost loops that train one model by batches that they draw, each with the loops around it."""
    found: dict[ast.stmt, tuple[Module, ast.stmt, list[Site]]] = {}
    flow, data = distribution.batches, distribution.data
    optimizers = {
        value.site
        for step in program.steps
        for value in program.flow.values(step.optimizer, step.scope)
        if value.site is not None
    }
    makes_optimizer = program.closure(lambda node: node in optimizers)
    for site in program.backwards:
        drawn = data.random.get(site.node)
        loops = list(flow.loops_of(site))
        if not loops or drawn is None:
            continue
        trains = [loop for loop in loops if not makes_optimizer(loop.node)] or loops[:1]
        outermost = trains[-1]
        assert isinstance(outermost.node, ast.stmt)
        statement = _first_draw(program, outermost, drawn)
        found[statement] = outermost.module, statement, [loop for loop in loops if loop not in trains]
    return list(found.values())


def _first_draw(program: Program, loop: Site, drawn: Site) -> ast.stmt:
    """The loop, or the statement before it that fetches the first batch already."""
    assert isinstance(loop.node, ast.stmt)
    callees = {info for node in walk(drawn.node) if isinstance(node, ast.Call) for info in program.flow.callees(node)}
    where = blocks.place(loop.module, loop.node)
    for statement in where.suite[: where.index]:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            continue
        for node in blocks.walk_own(statement):
            if isinstance(node, ast.Call) and callees & program.flow.callees(node):
                return statement
    return _shuffled_above(program, loop, where.suite[: where.index]) or loop.node


def _shuffled_above(program: Program, loop: Site, above: Sequence[ast.stmt]) -> ast.stmt | None:
    """The statement that shuffles the rows of which the loop takes slices, where nothing below it draws anything."""
    rows = {
        blocks.path_of(node.value)
        for node in blocks.walk_own(loop.node)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and isinstance(node.ctx, ast.Load)
    } - {None}

    def shuffles(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Call)
            and bool(program.callee_names(node, loop.scope) & SHUFFLES_IN_PLACE)
            and any(blocks.path_of(given) in rows for given in node.args[:1])
        )

    def draws(node: ast.AST) -> bool:
        located = program.locate(node) if isinstance(node, ast.Call) else None
        return (
            isinstance(node, ast.Call)
            and located is not None
            and not shuffles(node)
            and any(name.startswith(DRAWN) for name in program.callee_names(node, located[1]))
        )

    draws_anything = program.closure(draws)
    for index, statement in enumerate(above):
        if any(map(shuffles, blocks.walk_own(statement))):
            return None if any(map(draws_anything, above[index:])) else statement
    return None
