"""Log from the main process only.

## What it does
`SummaryWriter(...)` becomes `amp.on_main(SummaryWriter)(...)`: on the other processes it is an object that
accepts every call and does nothing. `wandb.init(...)` gets `mode="disabled"` on the others, where all calls of it do
nothing; not in a script that takes from the run what it hasn't put there, such as a sweep's configuration or
artifacts, which every process needs.

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

from amp_rules.plan import declining
from amp_rules.plan.context import Change, Context
from amp_rules.plan.declining import Declined
from amp_rules.plan.rule import Rule
from amp_rules.roles.steps import Program, Site
from amp_rules.source.scopes import Scope
from amp_rules.text.actions import ExpressionEdit, Replace
from amp_rules.text.expression_edits import add_keyword
from amp_rules.torch.writers import RUN_INPUTS, RUNS, WRITERS

RULE = Rule("AMP210", "log-on-main-process", "Only the main process logs.", "distribution", optional=True)

_CONFIGURED = ("update", "setdefaults")
"""What is asked of a run's configuration by those who only write it down."""
_FILLED_BY = ("config", "resume", "resume_from", "fork_from")
"""Arguments by which a run begins with a configuration."""
_FIRST_ARGUMENTS = 2
"""Arguments that come before these, in all versions."""


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each logging client, and for each run of a tracking service."""
    for site in filter(_is_kept, context.program.calls_to(WRITERS)):
        assert isinstance(site.node, ast.Call)
        message = f"`{site.module.text(site.node.func)}` logs on the main process only"
        is_asked = site.node in context.processes.folders.told
        message += ", and all know its folder" if is_asked else ""
        written = context.vocabulary.called_on_main(site.module, site.node.func, share_folder=is_asked)
        yield Change.written(RULE, site.module, site.node, message, written, optional=not is_asked)
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


def _is_kept(site: Site) -> bool:
    """Whether something goes on to use it: a variable, a block, a caller, a list."""
    return not isinstance(site.module.parents[site.node], (ast.Expr, ast.Attribute))


# ---- runs ------------------------------------------------------------------------------------------------------------


def _runs(context: Context) -> Iterator[Change]:
    program = context.program
    sites = list(program.calls_to(RUNS))
    if not sites or _brings_something_in(program, sites):
        return
    for site in sites:
        call = site.node
        if not isinstance(call, ast.Call) or any(item.arg is None for item in call.keywords):
            continue
        is_main = context.vocabulary.is_main_process(site.module)
        mode = next((item.value for item in call.keywords if item.arg == "mode"), None)
        action = (
            Replace(call, add_keyword(f'mode=None if {is_main} else "disabled"'))
            if mode is None
            else Replace(mode, _disabled_unless(is_main))
        )
        yield Change(RULE, site.module, call, "one run for all processes", [action], needs_import=True)


def _disabled_unless(condition: str) -> ExpressionEdit:
    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        if isinstance(node, (cst.IfExp, cst.Lambda)) and not node.lpar:
            node = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return cst.IfExp(test=cst.parse_expression(condition), body=node, orelse=cst.SimpleString('"disabled"'))

    return edit


def _brings_something_in(program: Program, begun: list[Site]) -> bool:
    """Whether the script takes from a run what it trains with: a sweep's configuration, or data.

    What it stores in the configuration itself it finds there in a disabled run too.
    """
    stored: set[str] = set()
    read: set[str] = set()
    for node, _, scope in program.nodes():
        if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
            continue
        if isinstance(node, ast.Attribute) and node.attr in RUN_INPUTS and _is_run(program, node, scope):
            return True
        if not _is_configuration(program, node, scope):
            continue
        parent = scope.module.parents[node]
        is_named = _is_kept_by_name(node, parent) or _is_given_to_function(program, node, scope)
        if is_named and _is_external(program, node, scope):
            continue  # the name is looked at wherever it stands
        key = _key(node, parent)
        if key is None:
            return True
        if key in _CONFIGURED:
            continue
        is_target = isinstance(scope.module.parents[parent], (ast.Assign, ast.AnnAssign))
        (stored if is_target and _is_stored(parent) else read).add(key)
    return bool(read - stored) or (bool(read) and not all(_starts_empty(site.node) for site in begun))


def _is_configuration(program: Program, node: ast.Name | ast.Attribute, scope: Scope) -> bool:
    """Whether an expression may be the configuration of a run."""
    is_asked = isinstance(node, ast.Attribute) and node.attr == "config" and _is_run(program, node, scope)
    return is_asked or _is_external(program, node, scope)


def _is_external(program: Program, node: ast.expr, scope: Scope) -> bool:
    services = {name.partition(".")[0] for name in RUNS}
    known = {f"{name}.config" for name in services} | {f"{name}.run.config" for name in services}
    return bool(program.names(node, scope) & known)


def _is_kept_by_name(node: ast.expr, parent: ast.AST) -> bool:
    return (
        isinstance(parent, ast.Assign)
        and parent.value is node
        and all(isinstance(target, ast.Name) for target in parent.targets)
    )


def _is_given_to_function(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a call hands the value to functions of the project, as a parameter of its own."""
    parent = scope.module.parents[node]
    call = scope.module.parents[parent] if isinstance(parent, ast.keyword) and parent.arg is not None else parent
    if not isinstance(call, ast.Call) or call.func is node:
        return False
    called = program.flow.values(call.func, scope)
    return bool(called) and all(value.kind == "function" and _has_plain_head(value.ref.node) for value in called)


def _has_plain_head(function: ast.AST) -> bool:
    return (
        isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        and not function.decorator_list
        and function.args.vararg is None
        and function.args.kwarg is None
    )


def _key(node: ast.expr, parent: ast.AST) -> str | None:
    """What is asked of a configuration, or put into it; None where that isn't one thing that is known."""
    if isinstance(parent, ast.Attribute):
        return parent.attr
    if isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.slice, ast.Constant):
        return str(parent.slice.value)
    return None


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store)


def _starts_empty(call: ast.AST) -> bool:
    """Whether nothing stands in a run's configuration when it begins, which a sweep would change or a server know."""
    assert isinstance(call, ast.Call)
    return len(call.args) <= _FIRST_ARGUMENTS and not any(item.arg in (*_FILLED_BY, None) for item in call.keywords)


def _is_run(program: Program, node: ast.Attribute, scope: Scope) -> bool:
    """Whether an attribute is asked of a run: `wandb.config`, `run.config`."""
    services = {name.partition(".")[0] for name in RUNS}
    if any(
        name.rpartition(".")[0] in {*services, *(f"{name}.run" for name in services)}
        for name in program.names(node, scope)
    ):
        return True
    return any(value.kind == "object" and value.ref in RUNS for value in program.flow.values(node.value, scope))
