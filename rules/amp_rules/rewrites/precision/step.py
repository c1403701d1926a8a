"""Step the optimizer through the scaler, and update the scale.

## What it does
`optimizer.step()` becomes `amp.scaler.step(optimizer)`; after the last step of an iteration comes
`amp.scaler.update()`. An iteration ends before the next backward pass for an optimizer that has stepped in it, so each
step of that optimizer is followed by one update. Where the script itself steps only if the gradients are finite, the
update comes all the same, so that the scale goes down.

## Why
The scaler divides the gradients by the scale again. If a gradient overflowed, it skips the step, on all ranks alike.
Then it adapts the scale, once an iteration.

## Before
    optimizer.step()

## After
    amp.scaler.step(optimizer)
    amp.scaler.update()

## When it declines
When the optimizer evaluates a closure (AMP191), unless it trains a model, or tensors of its function's, that no other
step trains and stays as it is (AMP186); when something else than an optimizer of torch changes the weights (AMP192), or
when `optimizer.step` is used as a value or reached by its name (AMP193).

## Leaving it out
No: scaled gradients would reach the weights.

## Source
https://pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from amp_rules.flow.values import Value
from amp_rules.plan import looking_passes, steps_apart, steps_by_gradients
from amp_rules.plan.context import Change, Context
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Step
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.resolver import free_name
from amp_rules.source.syntax import walk

_RESULT_NAMES = ("stepped", "step_result")
RULE = Rule("AMP104", "scaler-step", "The scaler decides whether the optimizer steps.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each step and each update."""
    for site in context.precision.steps:
        message = f"`{site.module.text(site.optimizer)}` steps unless its gradients overflowed"
        result = free_name(site.module, _RESULT_NAMES) if isinstance(site.statement, ast.Return) else None
        yield Change.written(RULE, site.module, site.node, message, context.vocabulary.step(site, result))
    unscales = context.precision.unscales
    updated: set[ast.stmt] = set()
    for module, step in _updates(context.program):
        statement = steps_by_gradients.behind_conditions(unscales, module, step)
        if statement not in updated:
            updated.add(statement)
            message = "the loss scale is updated once per iteration, after the last step"
            yield Change.written(RULE, module, statement, message, context.vocabulary.update_scale(module, statement))
        for leaving in steps_by_gradients.left_early(unscales, module, statement):
            if leaving not in updated:
                updated.add(leaving)
                message = "the loss scale comes down where gradients overflowed, without a step too"
                written = context.vocabulary.update_scale(module, leaving, before=True)
                yield Change.written(RULE, module, leaving, message, written)


def notes(context: Context) -> Iterator[Note]:
    """Yield the steps and the backward passes beside these that stay as they are."""
    yield from steps_apart.notes(context.program)
    yield from looking_passes.notes(context.program)


def _updates(program: Program) -> list[tuple[Module, ast.stmt]]:
    """The statements after which the scale is updated: once a round, after the last step."""
    found: dict[ast.stmt, Module] = {}
    for step in program.steps:
        statement = step.statement
        if isinstance(statement, ast.Return):
            continue  # the update comes with the step, before what it gave is returned
        suite: tuple[ast.stmt, ...] | None = None
        for parent in blocks.enclosing(step.module, statement):
            if isinstance(parent, blocks.LOOPS) and program.runs_backward(parent):
                suite = tuple(parent.body)
                break
        if suite is None:
            suite = tuple(getattr(step.body, "body", ()))
            if isinstance(step.body, ast.Module):
                suite = next(
                    (
                        tuple(parent.body)
                        for parent in blocks.enclosing(step.module, statement)
                        if isinstance(parent, ast.If) and blocks.place(step.module, parent).parent is step.body
                    ),
                    suite,
                )
        for target in _last_steps(program, suite, _sites(program)):
            found[target] = step.module
    return [(module, statement) for statement, module in found.items()]


def _sites(program: Program) -> dict[ast.stmt, list[Step]]:
    """The steps by their statements."""
    found: dict[ast.stmt, list[Step]] = {}
    for site in program.steps:
        found.setdefault(site.statement, []).append(site)
    return found


def _is_round(program: Program, statement: ast.stmt) -> bool:
    """Whether a statement is a loop with a backward pass of its own: its rounds are not those around it."""
    return isinstance(statement, blocks.LOOPS) and program.runs_backward(statement)


def _rounds(
    program: Program, suite: tuple[ast.stmt, ...], steps: dict[ast.stmt, list[Step]]
) -> list[tuple[ast.stmt, ...]]:
    """The suite, cut before each step of an optimizer that stepped before and had a backward pass since."""
    found: list[tuple[ast.stmt, ...]] = []
    start, stepped, runs_again = 0, set[Value](), False
    for index, statement in enumerate(suite):
        if _is_round(program, statement):
            continue
        runs_again = runs_again or program.runs_backward(statement)
        own = {
            value
            for node in blocks.walk_own(statement)
            if isinstance(node, ast.stmt)
            for site in steps.get(node, ())
            for value in program.flow.values(site.optimizer, site.scope)
        }
        if own:
            if own & stepped and runs_again:
                found.append(suite[start:index])
                start, stepped = index, set()
            stepped |= own
            runs_again = False
    return [*found, suite[start:]]


def _last_steps(program: Program, suite: tuple[ast.stmt, ...], steps: dict[ast.stmt, list[Step]]) -> list[ast.stmt]:
    """The last statements of each round that step, alone or as a whole."""
    rounds = _rounds(program, suite, steps)
    if len(rounds) > 1:
        return [target for part in rounds for target in _last_steps(program, part, steps)]

    def own_steps(statement: ast.stmt) -> bool:
        return any(node in steps for node in blocks.walk_own(statement) if isinstance(node, ast.stmt))

    holding = [item for item in suite if own_steps(item) and not _is_round(program, item)]
    if not holding:
        return []
    last = holding[-1]
    found: list[ast.stmt] = []
    for item, following in pairwise(holding):
        # A round that ends early must have its update too.
        if item not in steps and _leaves(item):
            found.extend(_last_steps(program, (item,), steps))
        elif any(_leaves(between) for between in suite[suite.index(item) + 1 : suite.index(following)]):
            found.append(item)
    if len(holding) > 1 or last in steps or isinstance(last, blocks.LOOPS):
        has_rounds = any(isinstance(node, ast.stmt) and _is_round(program, node) for node in walk(last))
        if len(holding) > 1 and has_rounds:
            return [target for item in holding for target in _last_steps(program, (item,), steps)]
        return [*found, last]
    for inner in blocks.suites(last):
        found.extend(_last_steps(program, tuple(inner), steps))
    return found


def _leaves(statement: ast.stmt) -> bool:
    """Whether the statement can end the round."""
    return any(isinstance(node, (ast.Continue, ast.Break, ast.Return)) for node in blocks.walk_own(statement))
