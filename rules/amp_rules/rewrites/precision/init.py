"""Start the runtime.

## What it does
Imports the runtime as `amp` and calls `amp.init(opt_level=..., ddp=...)` at the start of the script's main
path, after the command line is parsed.

## Why
The level is one argument, so the same script serves O0 to O3, and `AMP_OPT_LEVEL` overrides it. Under
torchrun, `init` joins the other processes; it is never called at import, because workers of a
DataLoader would then call it too. A script for Apex also gets one call, if the level that it gave to `amp.initialize`
is known at that place; otherwise the first call joins the processes, and a second one chooses the level. Where the
script starts the processes that train, each of them has the call, and the one that starts them too if that may train
alone. If the script converts batch norm itself, perhaps on request, `sync_bn=False` keeps its conversion. It also
stands where gradients of `torch.autograd.grad` move weights within a step, as in meta-learning: batch norm is that of
one task there.

## Before
    args = parser.parse_args()

## After
    args = parser.parse_args()
    amp.init(opt_level="O1", ddp=True)

## When it declines
Never by itself.

## Leaving it out
No: without `amp.init` the other calls of the runtime have no effect. The whole migration is declined instead (AMP199).

## Source
https://nvidia.github.io/apex/amp.html for the levels.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from amp_rules.plan import declining, one_start
from amp_rules.plan.arguments_in_reach import Place
from amp_rules.plan.context import QUANTIZE, Change, Context
from amp_rules.plan.inner_steps import mixes_tasks
from amp_rules.plan.notes import OWN_PRECISION_STAYS
from amp_rules.plan.own_half.place import below_flag
from amp_rules.plan.rule import Rule
from amp_rules.plan.start_place import running, start_of_first_process, start_place
from amp_rules.plan.switch import Switch
from amp_rules.roles.half_tests import asks_for_float16
from amp_rules.source import blocks
from amp_rules.source.head import import_place, import_place_in_notebook
from amp_rules.source.modules import Module
from amp_rules.text.actions import Action, Insert, Remove
from amp_rules.text.vocabulary import InitArguments
from amp_rules.torch.wrappers import CONVERTS_BATCH_NORM

RULE = Rule(
    "AMP101",
    "init",
    "What the new code needs starts at the head of the main path.",
    "precision",
    last=True,
    shared=True,
)

_OPTION = "AMP115"
"""The rewrite that adds an option for the level."""
# A call that ends behind this column is written on several lines.
_WIDTH = 110


def changes(context: Context) -> Iterator[Change]:
    """Yield the start, unless the script has one, and an import for every file that needs it by the other changes."""
    users = [change for change in context.made if change.needs_import]
    used = [(change.module, _statement(change.module, change.node)) for change in users]
    if context.initialised and context.distribution is None:
        yield from _imports(context, [change.module for change in users], used)
        return
    switch = _switch(context)
    place = switch.place if switch is not None else start_place(context)
    start, statement, after = place.module, place.statement, place.after
    if context.own_start is not None:
        start, statement, after = below_flag(context, (start, statement, after), running(users))
    room = _WIDTH - start.start(statement)[1]
    width = room if context.own_start is not None else None
    code = context.vocabulary.start(start, _settings(context, switch), width)
    used = [*used, *((start, item) for item in _not_before(start, statement, after))]
    moved = _moved(context, start, statement, after)
    if moved is not None:
        code = context.vocabulary.joined(start, moved[1], _settings(context, None).sync_bn, room)
    follows_import = after and isinstance(statement, (ast.Import, ast.ImportFrom))
    if follows_import or (start.cells and not (after and isinstance(statement, (ast.Assign, ast.AnnAssign)))):
        code = f"\n{code}"  # apart from the imports above
    message = "the level is an argument; AMP_OPT_LEVEL overrides it"
    if switch is not None and switch.override is not None:
        message += f", and `{switch.override}` overrides both"
    elif switch is not None:
        message = f"`{switch.level}` chooses the level; AMP_OPT_LEVEL overrides it"
    if context.keeps_precision:
        message = OWN_PRECISION_STAYS
    elif _mixes_tasks(context):
        message += "; batch norm stays that of each task, which an inner step moves the weights for"
    actions: list[Action] = [Insert(statement, code, after=after, order=-1, gap=True)]
    if moved is not None:
        message = "the processes join before the data is split; the level is known there"
        actions.extend(Remove(item, keep_comments=True) for item in moved[0])
    elif context.initialised:
        message = "the processes join before the data is split; the level is chosen where it was before"
    yield Change(RULE, start, statement, message, actions)
    starts = [start]
    first = start_of_first_process(context) if not context.initialised else None
    if first is not None:
        yield _in_first_process(context, first)
        used += [(first.module, item) for item in _not_before(first.module, first.statement, first.after)]
        starts.append(first.module)
    yield from _imports(context, [*starts, *(change.module for change in users)], used)


def _in_first_process(context: Context, place: Place) -> Change:
    """The start in the process that trains alone, or else starts those that train.

    Raises:
        Declined: the level is read from what the script has in the others.
    """
    if context.own_start is not None and context.own_start.reads:
        raise declining.decline(
            declining.ALREADY_MIXED,
            place.module,
            place.statement,
            "the script trains in its first process or in those it starts, and chooses half precision in one place",
            "call `amp.init(opt_level=...)` with the level in both",
        )
    code = context.vocabulary.start(place.module, _settings(context, None))
    if place.after and isinstance(place.statement, (ast.Import, ast.ImportFrom)):
        code = f"\n{code}"  # apart from the imports above
    insert = Insert(place.statement, code, after=place.after, order=-1, gap=True)
    return Change(RULE, place.module, place.statement, "this process may train alone, without those others", [insert])


def _switch(context: Context) -> Switch | None:
    """The option that chooses the level, unless it is a new one that was left out."""
    switch = context.switch
    if switch is None or context.initialised:
        return None
    return switch if switch.above is None or _has_option(context) else None


def _has_option(context: Context) -> bool:
    return any(change.rule.code == _OPTION for change in context.made)


def _moved(
    context: Context, module: Module, statement: ast.stmt, after: bool
) -> tuple[list[ast.stmt], ast.Call] | None:
    """The start that took the place of Apex's, where its arguments are known when the processes join."""
    if not context.initialised or _has_option(context):
        return None  # an option is read where the level was chosen before
    return one_start.movable(context.program, context.vocabulary.starting, module, statement, after)


def _not_before(module: Module, statement: ast.stmt, after: bool) -> list[ast.stmt]:
    """The statement of the file that ``init`` stands above, which the import must not follow."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)) and after:
        return []  # the import of the runtime comes between the two
    body = module.tree.body
    index = body.index(statement) + after if statement in body else len(body)
    return body[index : index + 1]


def _imports(context: Context, modules: Sequence[Module], used: Sequence[tuple[Module, ast.stmt]]) -> Iterator[Change]:
    """The import that the new code needs, for each of the files that has none."""
    users = {statement for _, statement in used}
    uses_runtime = context.program.closure(lambda node: node in users)
    for module in dict.fromkeys(modules):
        line = context.vocabulary.import_line(module)
        if line is not None:
            top = {blocks.top_statement(module, item) for where, item in used if where is module}
            # What calls a function that uses the runtime comes after the import as well.
            top |= {item for item in module.tree.body if uses_runtime(item)}
            yield _import(module, line, top)


def _statement(module: Module, node: ast.AST) -> ast.stmt:
    return blocks.statement_of(module, node)


def _settings(context: Context, switch: Switch | None) -> InitArguments:
    start = _of_level(context, switch)
    if any(change.rule.code == QUANTIZE for change in context.made):
        return replace(start, quantize=context.options.quantize)
    return start


def _mixes_tasks(context: Context) -> bool:
    return context.options.sync_bn and context.distribution is not None and mixes_tasks(context.program)


def _of_level(context: Context, switch: Switch | None) -> InitArguments:
    options = context.options
    if context.program.calls_to(CONVERTS_BATCH_NORM):
        options = replace(options, sync_bn=False)  # the script does it itself, where it is asked to
    elif _mixes_tasks(context):
        options = replace(options, sync_bn=False)  # each task has batch norm, and an inner step, of its own
    ddp = context.distribution is not None
    if context.keeps_precision or context.initialised:
        # The script has its precision from elsewhere; only the processes join here.
        return InitArguments('"O0"', ddp=True, sync_bn=options.sync_bn)
    own = context.own_start
    if own is not None:
        return InitArguments(
            own.level,
            _own_half_type(context),
            ddp=ddp,
            sync_bn=options.sync_bn,
            sharded=options.shard,
            more=own.more,
        )
    start = InitArguments(
        f'"{options.opt_level}"',
        None if options.dtype == "auto" else options.dtype,
        None if options.loss_scale == "dynamic" else options.loss_scale,
        ddp,
        options.sync_bn,
        options.shard,
    )
    return start if switch is None else replace(start, opt_level=switch.level, override=switch.override)


def _own_half_type(context: Context) -> str | None:
    """The half type that was asked for; where the script made its model float16, and asks for that, its own."""
    if context.options.dtype != "auto":
        return context.options.dtype
    return "fp16" if asks_for_float16(context.program) else None


def _import(module: Module, line: str, top: set[ast.stmt]) -> Change:
    if module.cells:
        statement, after = import_place_in_notebook(module, top)
    else:
        statement, after = import_place(module.tree, [item for item in module.tree.body if item in top])
    insert = Insert(statement, line, after=after, order=-2, gap=True)
    return Change(RULE, module, statement, "the runtime's names", [insert])
