"""Choose the level by an option of the script's own.

## What it does
With `--switch`: adds `--amp` to the script's argument parser, below its last option and written like it, and gives
`amp.init` what it holds. It takes O0 to O3; O0 and O1 with `--target torch`. An option of the script's own is taken
instead if it names levels, or turns mixed precision on as `--fp16` does, and nothing else reads it.

## Why
Whoever starts the script sees the switch in its `--help`, next to the batch size and the learning rate. The command
line overrides `AMP_OPT_LEVEL`, and that the level which was asked for; so the option has no default, and is None where
it is not given. An option of the script's own keeps its default, which cannot be told from a level that is given: over
that one `AMP_OPT_LEVEL` wins.

## Before
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

## After
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--amp", choices=["O0", "O1", "O2", "O3"], help="...")
    args = parser.parse_args()
    amp.init(opt_level="O1", override=args.amp)

## When it declines
The level then stands in the script alone, and a note says why (AMP185). Where no variable holds the arguments that
argparse parsed when the level is chosen; where the command line is read by another package; where the name is taken, or
something reads an option for precision that the script has; where a library may add options of its own; and where all
arguments are passed on by name, as in `Net(**vars(args))`. A script for Apex whose level is an argument already keeps
it.

## Leaving it out
Yes: the level is then what `--opt-level` says, and `AMP_OPT_LEVEL` overrides it.

## Source
https://docs.python.org/3/library/argparse.html#choices
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.statements import is_main_guard
from amp_rules.plan.arguments_in_reach import Place
from amp_rules.plan.context import Change, Context
from amp_rules.plan.notes import NO_SWITCH, note
from amp_rules.plan.report import Note
from amp_rules.plan.rule import EVERY_OTHER, Rule
from amp_rules.plan.start_place import start_of_first_process, start_place
from amp_rules.plan.switch import NoSwitch, Switch, find
from amp_rules.plan.wanted import wants
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.text.actions import Action, Insert

RULE = Rule(
    "AMP115",
    "level-switch",
    "An option of the script's own chooses the level.",
    "precision",
    optional=True,
    after=(EVERY_OTHER, "AMP202"),
)


def changes(context: Context) -> Iterator[Change]:
    """Yield the new option; the start of the runtime, which comes later, reads it."""
    context.switch = None
    if not _is_asked(context):
        return
    try:
        switch, start = _found(context)
    except NoSwitch:
        return
    context.switch = switch
    if start is not None:
        yield _at_start(context, switch, start)
    if switch.above is not None:
        module, statement = switch.above
        message = "the command line chooses the level, before AMP_OPT_LEVEL"
        yield Change(RULE, module, statement, message, [Insert(statement, switch.line, after=True)])


def notes(context: Context) -> Iterator[Note]:
    """Yield why there is no switch."""
    if not _is_asked(context) or context.switch is not None:
        return
    try:
        _found(context)
    except NoSwitch as none:
        yield note(NO_SWITCH, none.module, none.node, f"no switch in the script's arguments: {none.text}")


def _is_asked(context: Context) -> bool:
    return context.options.switch and wants(context.options, RULE.code)


def _found(context: Context) -> tuple[Switch, Site | None]:
    """The switch, and the start of the runtime where the script has one: where Apex was initialised.

    Raises:
        NoSwitch: there is none.
    """
    program = context.program
    if program.entry.cells:
        raise NoSwitch(program.entry, None, "a notebook has no command line")
    if context.own_start is not None:
        text = f"half precision by hand goes, and `{context.own_start.level}` chooses the level in its place"
        raise NoSwitch(program.entry, None, text)
    if not context.initialised:
        if start_of_first_process(context) is not None:
            raise NoSwitch(program.entry, None, "the script trains in its first process or in those that it starts")
        return find(program, context.options, start_place(context), context.options.opt_level), None
    start, level = _start(context)
    switch = find(program, context.options, Place(start.module, start.statement, after=False), level)
    if switch.option is not None:
        option = switch.option
        raise NoSwitch(option.module, option.call, f"{option.shown} has no part in the level that Apex was given")
    return switch, start


def _start(context: Context) -> tuple[Site, str]:
    """The one call that chose the level of Apex, where that is written out and always runs, and the level."""
    found = [site for site in context.program.calls_to(context.vocabulary.starting) if _level(site) is not None]
    if len(found) != 1:
        raise NoSwitch(context.program.entry, None, "the level is chosen in several places, or in none")
    site = found[0]
    assert isinstance(site.node, ast.Call)
    level = _level(site)
    assert level is not None
    if not isinstance(level, ast.Constant):
        text = f"the script has one already: `{site.module.text(level)}` chooses the level"
        raise NoSwitch(site.module, site.node, text)
    for parent in blocks.enclosing(site.module, site.statement):
        if not (isinstance(parent, ast.If) and is_main_guard(parent)):
            raise NoSwitch(site.module, site.node, "the level is chosen under a condition of the script's own")
    if any(item.arg in ("enabled", None) for item in site.node.keywords):
        raise NoSwitch(site.module, site.node, "`enabled=` turns mixed precision on and off already")
    return site, str(level.value)


def _level(site: Site) -> ast.expr | None:
    call = site.node
    assert isinstance(call, ast.Call)
    return next((item.value for item in call.keywords if item.arg == "opt_level"), None)


def _at_start(context: Context, switch: Switch, start: Site) -> Change:
    assert isinstance(start.node, ast.Call) and switch.override is not None
    written = context.vocabulary.overridden(start.module, start.node, switch.override)
    message = f"`{switch.override}` overrides the level"
    actions: list[Action] = list(written.actions)
    return Change(RULE, start.module, start.node, message, actions, written.needs_import)
