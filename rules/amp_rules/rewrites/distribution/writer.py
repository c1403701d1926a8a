"""Log from the main process only.

## What it does
`SummaryWriter(...)` becomes `amp.on_main(SummaryWriter)(...)`: on the other processes it is an object that
accepts every call and does nothing. `wandb.init(...)` gets `mode="disabled"` on the others, where all calls of it do
nothing; not in a script that reads its configuration, which a sweep can fill, or takes artifacts from it: every
process needs the same, and AMP282 says that each begins a run.

A script that asks a writer for the folder that it makes up has `amp.on_main(SummaryWriter, share_folder=True)()`, which
tells all processes.

## Why
Several writers in one folder make curves that jump back and forth, and N processes make N runs.

## Before
    writer = SummaryWriter("runs")

## After
    writer = amp.on_main(SummaryWriter)("runs")

## When it declines
When the script asks a writer for its folder on each process, the writer makes that up itself, and not all processes
come where it is made (AMP297): only the main process has it then. A writer that is given its folder tells it on all.

## Leaving it out
Yes: training and checkpoints are the same; each process then has curves of its own. No where a writer is asked for the
folder that it makes up: each process would look into another one.

## Source
https://pytorch.org/docs/stable/tensorboard.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from amp_rules.plan import declining, own_writers
from amp_rules.plan import notes as noted
from amp_rules.plan.context import Change, Context
from amp_rules.plan.declining import Declined
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.plan.run_settings import read_from_run
from amp_rules.roles.sites import Site
from amp_rules.source.index import keyword, literal
from amp_rules.text.actions import ExpressionEdit, Replace
from amp_rules.text.expression_edits import add_keyword
from amp_rules.torch.writers import RUNS, WRITERS

_CHOSEN = frozenset({"group"})
"""What a script that means several runs tells the service."""

RULE = Rule("AMP210", "log-on-main-process", "Only the main process logs.", "distribution", optional=True)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each logging client, and for each run of a tracking service."""
    for site in filter(_is_kept, context.program.calls_to(WRITERS)):
        assert isinstance(site.node, ast.Call)
        message = f"`{site.module.text(site.node.func)}` logs on the main process only"
        is_asked = site.node in context.processes.folders.told
        message += ", and all know its folder" if is_asked else ""
        written = context.vocabulary.called_on_main(site.module, site.node.func, share_folder=is_asked)
        yield Change.written(RULE, site.module, site.node, message, written, optional=not is_asked)
    for site in filter(_is_kept, own_writers.made(context.program)):
        assert isinstance(site.node, ast.Call)
        message = f"`{site.module.text(site.node.func)}` logs on the main process only"
        written = context.vocabulary.called_on_main(site.module, site.node.func)
        yield Change.written(RULE, site.module, site.node, message, written, optional=True)
    yield from _runs(context)


def reasons(context: Context) -> Iterator[Declined]:
    """Yield reads of a folder that only the writer of the main process would know."""
    for site in context.processes.folders.untold():
        text = site.module.text(site.node)
        yield declining.decline(
            declining.FILES,
            site.module,
            site.node,
            f"`{text}` names a folder on each process, and the writer of the main process alone has made one",
            "give the writer its folder, `SummaryWriter(folder)`, named on the main process: "
            "`amp.from_main_process(...)` of a name with the time in it",
        )


def notes(context: Context) -> Iterator[Note]:
    """Yield the first run that each process begins for itself, as the script takes something from it."""
    sites = [site for site in context.program.calls_to(RUNS) if isinstance(site.node, ast.Call)]
    read = read_from_run(context.program) if sites else None
    for site in sites[:1] if read is not None else []:
        assert isinstance(site.node, ast.Call)
        if {item.arg for item in site.node.keywords} & _CHOSEN or literal(keyword(site.node, "mode")) == "disabled":
            continue
        text = site.module.text(site.node.func)
        yield noted.note(
            noted.TOTALS,
            site.module,
            site.node,
            f"`{text}` begins a run in each of N processes, with the numbers of that process: the script reads "
            f"`{read}`, which a run that is turned off may not have",
        )


def _is_kept(site: Site) -> bool:
    """Whether something goes on to use it: a variable, a block, a caller, a list."""
    return not isinstance(site.module.parents[site.node], (ast.Expr, ast.Attribute))


# ---- runs ------------------------------------------------------------------------------------------------------------


def _runs(context: Context) -> Iterator[Change]:
    program = context.program
    sites = list(program.calls_to(RUNS))
    if not sites or read_from_run(program) is not None:
        return
    for site in sites:
        call = site.node
        if not isinstance(call, ast.Call):
            continue
        is_main = context.vocabulary.is_main_process(site.module)
        mode = next((item.value for item in call.keywords if item.arg == "mode"), None)
        spread = next((item.value for item in call.keywords if item.arg is None), None)
        if mode is not None:
            action = Replace(mode, _disabled_unless(is_main))
        elif spread is not None:
            action = Replace(spread, _disabled_in(is_main))
        else:
            action = Replace(call, add_keyword(f'mode=None if {is_main} else "disabled"'))
        yield Change(RULE, site.module, call, "one run for all processes", [action], needs_import=True)


def _disabled_unless(condition: str) -> ExpressionEdit:
    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        if isinstance(node, (cst.IfExp, cst.Lambda)) and not node.lpar:
            node = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return cst.IfExp(test=cst.parse_expression(condition), body=node, orelse=cst.SimpleString('"disabled"'))

    return edit


def _disabled_in(condition: str) -> ExpressionEdit:
    """Settings that may hold a mode: the other processes have the same with another one."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        if isinstance(node, (cst.IfExp, cst.Lambda)) and not node.lpar:
            node = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        off = cst.DictElement(key=cst.SimpleString('"mode"'), value=cst.SimpleString('"disabled"'))
        return cst.IfExp(
            test=cst.parse_expression(condition),
            body=node,
            orelse=cst.Dict([cst.StarredDictElement(node), off]),
            lpar=[cst.LeftParen()],
            rpar=[cst.RightParen()],
        )

    return edit
