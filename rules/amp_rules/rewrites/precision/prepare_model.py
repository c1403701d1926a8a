"""Prepare the model for its precision and its processes.

## What it does
`model = amp.prepare_model(model)` once the model is built and its weights are set. Where a step trains
several models, calls them several times, accumulates gradients or decides anew which parts of the model it leaves
out, `delay_allreduce=True` averages the gradients over the ranks once, when the optimizer steps, instead of during
the backward pass. Layers that take no part in any step need no word: the runtime counts them as zero.

## Why
SyncBN, precision and DDP have one right order. Alone and at O0 the call gives the model back untouched; at
O1 it makes the model's outputs FP32, so that metrics, `.numpy()` and losses outside of autocast go on
working.

## Before
    model = Net().to(device)

## After
    model = amp.prepare_model(Net().to(device))

Where a script wraps its model in one case and makes it bare in the other, it is prepared on each of these ways.
A way out that loads weights, evaluates and returns stands below the line, so that its outputs are FP32 too.
Where the variable may hold a function in the place of a model, the line stands under `isinstance(model, nn.Module)`.

## When it declines
When no variable holds the model for its whole life (AMP196).

## Leaving it out
No: levels from O2 on need it, and several processes too.

## Source
https://pytorch.org/docs/stable/notes/ddp.html; Apex's `delay_allreduce`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import batch_losses, kept_from_batches, loaded_networks, written_buffers
from amp_rules.plan import notes as noted
from amp_rules.plan.context import Change, Context
from amp_rules.plan.gradient_averaging import Averaging
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.quantizing.found import Quantized
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.plan.words import Words
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.text.vocabulary import ModelPlace

RULE = Rule("AMP108", "prepare-model", "The model is prepared before it is trained.", "precision", shared=True)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each trained model."""
    averaging = context.distribution.averaging if context.distribution is not None else None
    delayed = averaging is not None and averaging.delayed
    at_the_step = f"gradients are averaged at the step, because {averaging.reason}" if averaging is not None else ""
    sharded = context.distribution is not None and context.distribution.sharding is not None
    # The processes take turns where they download: there they cannot meet, so the model is prepared behind it.
    in_turns = {statement for _, statement in context.distribution.downloads} if context.distribution else set()
    for order, home in enumerate(context.precision.homes):
        message = f"`{home.variable}` gets its precision" + (" and joins the other ranks" if averaging else "")
        message += f"; {at_the_step}" if delayed else ""
        message += "; its parameters are sharded before the optimizer is built" if sharded else ""
        message += f"; some may get no gradient: {averaging.unused}" if averaging and averaging.unused else ""
        place = ModelPlace(
            home.module,
            home.statement,
            home.variable,
            None if _becomes_another(context, home) or home.statement in in_turns else home.inline,
            home.in_place,
            order,
            home.is_optional,
            home.before,
            _test(context, home) if home.may_be_function else "",
            home.also,
        )
        written = context.vocabulary.model(place, delayed=delayed, unused=bool(averaging and averaging.unused))
        yield Change.written(RULE, home.module, home.statement, message, written)
    if averaging is not None:
        for home in written_buffers.homes(context.program, context.precision):
            message = f"`{home.variable}` writes buffers, which become those of the main process after each step"
            inline = home.inline if home.statement not in in_turns else None
            place = ModelPlace(home.module, home.statement, home.variable, inline, home.in_place)
            written = context.vocabulary.model(place, delayed=False)
            yield Change.written(RULE, home.module, home.statement, message, written)
    if averaging is not None and context.options.sync_bn:
        for home in written_buffers.homes_of_batch_norm(context.program, context.precision):
            message = f"`{home.variable}` has batch norm in training mode, which takes the batch of all processes"
            inline = home.inline if home.statement not in in_turns else None
            place = ModelPlace(home.module, home.statement, home.variable, inline, home.in_place)
            written = context.vocabulary.model(place, delayed=True)
            yield Change.written(RULE, home.module, home.statement, message, written)
        for module, statement, variable in loaded_networks.in_training_mode(context.program, context.precision):
            message = f"`{variable}` runs in training mode: batch norm in it takes the batch of all processes"
            written = context.vocabulary.model(ModelPlace(module, statement, variable), delayed=True)
            yield Change.written(RULE, module, statement, message, written)
    for order, (module, statement, variable) in enumerate(_reloads(context.program, context.precision.homes)):
        message = f"`{variable}` is loaded whole, and prepared like the model that it replaces"
        written = context.vocabulary.model(ModelPlace(module, statement, variable, order=order), delayed=delayed)
        yield Change.written(RULE, module, statement, message, written)
    if delayed and context.initialised:
        for site in context.program.calls_to(context.vocabulary.preparing):
            assert isinstance(site.node, ast.Call)
            written = context.vocabulary.delayed(site.module, site.node)
            yield Change.written(RULE, site.module, site.node, at_the_step, written)


def notes(context: Context) -> Iterator[Note]:
    """Yield why the plain wrapper does not average; losses of which averaged gradients are not those of all samples."""
    if context.distribution is not None:
        yield from _averaged(context, context.distribution.averaging)
        yield from batch_losses.notes(context.program, context.precision, context.processes.agreed.ranks)
        yield from kept_from_batches.notes(context.program, context.precision, context.processes)


def _averaged(context: Context, averaging: Averaging | None) -> Iterator[Note]:
    """Once for a program, where the first of its models is prepared; plain PyTorch does it in ways of its own."""
    if averaging is None or not context.precision.homes or context.options.target == "torch":
        return
    home = context.precision.homes[0]
    if averaging.delayed:
        text = f"gradients are averaged once, when the optimizer steps, because {averaging.reason}"
        yield noted.note(noted.AVERAGED, home.module, home.statement, text)
    elif averaging.unused:
        text = f"each step looks for parameters that get no gradient, because {averaging.unused}"
        yield noted.note(noted.AVERAGED, home.module, home.statement, text)


def _test(context: Context, home: Home) -> str:
    """The condition under which a variable holds a model, and no function."""
    kind = Words(context.program).word(home.module, "torch.nn.Module")
    return f'hasattr({home.variable}, "parameters")' if kind is None else f"isinstance({home.variable}, {kind})"


def _becomes_another(context: Context, home: Home) -> bool:
    """Whether a line of its own gives the variable another model first, one that trains for int8."""
    found = context.quantized
    return isinstance(found, Quantized) and found.start is not None and found.start.home == home


def _reloads(program: Program, homes: list[Home]) -> list[tuple[Module, ast.stmt, str]]:
    """Assignments of a whole model from a file to a prepared variable: what was loaded is not prepared."""
    by_key: dict[object, list[Home]] = {}
    for home in homes:
        by_key.setdefault(home.key, []).append(home)
    found: list[tuple[Module, ast.stmt, str]] = []
    for site in program.calls_to(frozenset({"torch.load"})):
        statement = site.statement
        if not isinstance(statement, ast.Assign) or statement.value is not site.node:
            continue
        targets = [
            element
            for target in statement.targets
            for element in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
        for target in targets:
            path = blocks.path_of(target)
            prepared = by_key.get(program.flow.key(target, site.scope)) if path is not None else None
            if path is not None and prepared and not any(_goes_on_to(statement, home) for home in prepared):
                found.append((site.module, statement, path))
    return found


def _goes_on_to(statement: ast.stmt, home: Home) -> bool:
    """Whether the variable is prepared after this statement anyway: behind the condition that it stands under."""
    if home.inline is not None:
        return home.statement is statement
    where = blocks.place(home.module, home.statement)
    return any(node is statement for item in where.suite[: where.index + 1] for node in blocks.walk_own(item))
