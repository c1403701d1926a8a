"""Step the optimizer through the scaler, and update the scale.

## What it does
`optimizer.step()` becomes `amp.scaler.step(optimizer)`; after the last step of a round comes `amp.scaler.update()`.

## Why
The scaler divides the gradients by the scale again and leaves the step out when one of them overflowed, on all ranks
together. Then it adapts the scale, once a round.

## Before
    optimizer.step()

## After
    amp.scaler.step(optimizer)
    amp.scaler.update()

## When it declines
When the optimizer evaluates a closure (AMP191), when something else than an optimizer of torch changes the weights
(AMP192), or when `optimizer.step` is used as a value or reached by its name (AMP193).

## Leaving it out
No: scaled gradients would reach the weights.

## Source
https://pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.rule import Rule
from amp_rules.roles.steps import Program
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
    for module, statement in _updates(context.program):
        message = "the scale adapts once a round, after the last step"
        yield Change.written(RULE, module, statement, message, context.vocabulary.update_scale(module, statement))


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
        for target in _last_steps(program, suite, {site.statement for site in program.steps}):
            found[target] = step.module
    return [(module, statement) for statement, module in found.items()]


def _last_steps(program: Program, suite: tuple[ast.stmt, ...], steps: set[ast.stmt]) -> list[ast.stmt]:
    """The last statements of a round that step, alone or as a whole."""

    def own_steps(statement: ast.stmt) -> bool:
        return any(node in steps for node in blocks.walk_own(statement) if isinstance(node, ast.stmt))

    def is_round(statement: ast.stmt) -> bool:
        """Loops with a backward pass of their own are rounds of their own."""
        return isinstance(statement, blocks.LOOPS) and program.runs_backward(statement)

    holding = [item for item in suite if own_steps(item) and not is_round(item)]
    if not holding:
        return []
    last = holding[-1]
    found: list[ast.stmt] = []
    for item in holding[:-1]:
        # A round that ends early must have its update too.
        if item not in steps and _leaves(item):
            found.extend(_last_steps(program, (item,), steps))
        elif any(_leaves(between) for between in suite[suite.index(item) + 1 : suite.index(last)]):
            found.append(item)
    if len(holding) > 1 or last in steps or isinstance(last, blocks.LOOPS):
        rounds = [node for node in walk(last) if isinstance(node, ast.stmt) and is_round(node)]
        if len(holding) > 1 and rounds:
            return [target for item in holding for target in _last_steps(program, (item,), steps)]
        return [*found, last]
    for inner in blocks.suites(last):
        found.extend(_last_steps(program, tuple(inner), steps))
    return found


def _leaves(statement: ast.stmt) -> bool:
    """Whether the statement can end the round."""
    return any(isinstance(node, (ast.Continue, ast.Break, ast.Return)) for node in blocks.walk_own(statement))
