"""Log from the first process alone, in a script with processes of its own.

## What it does
A logging client that every process makes is made by the first one, and is None on the others; statements that log
stand under `if writer is not None:`, unless the same test stands around them already. So do those that the first
process of each machine runs, where the client is that of the first of all. `wandb.init(...)` gets `mode="disabled"` on
the others, where all calls of it do nothing. Where one process alone begins a run,
`wandb.log(...)` that every process reaches comes under the test: it raises an error where no run was begun.
So does what is logged by a variable that has a client under such a test alone: the other processes have no such name.
The test is the script's own for the first rank where it has one; above the process group it asks the environment that
a launcher sets, where the processes join by it.

## Why
Several clients in one folder make curves that jump back and forth, and N processes make N runs.

## Before
    writer = SummaryWriter("runs")

## After
    writer = SummaryWriter("runs") if rank == 0 else None

## When it declines
Where not every process gets there; where the client is made at the head of a file that spawned processes run anew;
where `wandb.init` has a `group` or a `mode`; where the script reads the run's configuration, which a sweep can fill, or
takes artifacts from it; for runs of ClearML, MLflow and SwanLab; and where the client is used in another way than to
log, or logs under names that hold the rank (AMP288).

## Leaving it out
Yes: training and checkpoints are the same; each process then has curves of its own.

## Source
https://pytorch.org/docs/stable/tensorboard.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.context import Change, adjacent
from amp_rules.plan.own_ddp.first_rank import NO_WORD, FirstRank, Test
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import RankValues
from amp_rules.plan.own_ddp.writers import Client, clients, made_on_import
from amp_rules.plan.rule import Rule
from amp_rules.plan.run_settings import read_from_run
from amp_rules.plan.step_conditions import conditions_at
from amp_rules.roles.absent import never_runs
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Replace, Wrap
from amp_rules.text.line_width import either_within, keyword_within
from amp_rules.torch.writers import RUN_LOGS, RUNS, RUNS_OF_EACH, WRITERS

RULE = Rule(
    "AMP237", "log-on-first-rank", "The first process alone logs.", "distribution", optional=True, together=True
)

_OWN_WAYS = ("mode", "group", "id", None)


def changes(own: OwnDdp) -> Iterator[Change]:
    """Yield an edit for each client, and a test around what it logs."""
    first_rank = FirstRank(own)
    for client in clients(own):
        yield from _change(own, client, first_rank)
    yield from _logs_without_run(own, first_rank)
    yield from _logs_without_client(own, first_rank)
    _leave_made_on_import(own)
    _leave_runs(own)
    read = read_from_run(own.program)
    for site in own.program.calls_to(RUNS):
        call = site.node
        if (
            not isinstance(call, ast.Call)
            or site.module not in own.modules
            or any(item.arg in _OWN_WAYS for item in call.keywords)
        ):
            continue
        if own.reach(site.module, call) is not Reach.EVERY:
            continue
        if read is not None:
            text = (
                f"every process begins a run: `{read}` is taken from it, which a disabled run need not hold in a sweep"
            )
            own.leave(RULE, site.module, call, text)
            continue
        test = first_rank.known_at(site.module, call)
        if test is None and first_rank.at(site.module, call) is not None:
            text = "every process begins a run here, where the rank is not known yet: begin it below the process group"
            own.leave(RULE, site.module, call, text)
        elif test is not None:
            edit = keyword_within(site.module, call, f'mode="disabled" if {test.negated} else None')
            yield Change(RULE, site.module, call, "one run for all processes", [Replace(call, edit)])


def _leave_made_on_import(own: OwnDdp) -> None:
    """Note clients that stand at the head of a file which every started process runs."""
    for client, worker in made_on_import(own):
        text = (
            f"every process makes `{client.path}` when it runs this file's own lines, the one that starts the others, "
            f"too, and all log into one folder: make it in `{worker.name}`, on the first process alone"
        )
        own.leave(RULE, client.made.module, client.made.node, text)


def _leave_runs(own: OwnDdp) -> None:
    """Note the first run of a service whose calls can do nothing on no process; one for each file is enough."""
    told: set[Module] = set()
    for site in own.program.calls_to(RUNS_OF_EACH):
        if site.module in told or site.module not in own.modules or site.body in own.uncalled:
            continue
        if own.reach(site.module, site.node) is Reach.EVERY and not never_runs(
            own.program.flow, site.module, site.node
        ):
            told.add(site.module)
            text = f"every process runs `{site.module.text(site.node)}`, and begins a run of its own: let the first one"
            own.leave(RULE, site.module, site.node, f"{text} begin it, and log")


def _logs_without_run(own: OwnDdp, first_rank: FirstRank) -> Iterator[Change]:
    """Yield a test around what every process logs to a run that one of them alone has begun."""
    begun = own.program.calls_to(RUNS)
    if not begun or not all(own.is_of_first_alone(site.module, site.node) for site in begun):
        return
    rows = [
        (site.module, site.statement)
        for site in own.program.calls_to(RUN_LOGS)
        if site.module in own.modules
        and isinstance(site.statement, ast.Expr)
        and site.statement.value is site.node
        and own.reach(site.module, site.node) is Reach.EVERY
    ]
    for module, first, last in adjacent(rows):
        test = first_rank.at(module, first)
        if test is None:
            text = f"every process runs `{module.text(first)}`, and one alone has begun a run; {NO_WORD}"
            own.leave(RULE, module, first, text)
            continue
        message = f"`{module.text(first)}` logs where a run was begun"
        yield Change(RULE, module, first, message, [Wrap(first, last, f"if {test.text}:")])


def _logs_without_client(own: OwnDdp, first_rank: FirstRank) -> Iterator[Change]:
    """Yield a test around what every process logs by a variable that one of them alone has a client in."""
    for site in own.program.calls_to(WRITERS):
        if site.module not in own.modules or not own.is_of_first_alone(site.module, site.node):
            continue
        name, test = _name_of_one(site), _asked_where_made(own, site)
        if name is None or test is None:
            continue
        rows = [
            (item.module, item.statement)
            for item in _logged(own, site, name)
            if own.reach(item.module, item.node) is Reach.EVERY and not own.runs_exchange(item.statement)
        ]
        for module, first, last in adjacent(rows):
            here = first_rank.at(module, first)
            if here is not None and here.text == test:
                message = f"`{module.text(first)}` logs where `{name}` was made"
                yield Change(RULE, module, first, message, [Wrap(first, last, f"if {test}:")])


def _name_of_one(site: Site) -> str | None:
    """The variable of a function or a file that is given a client, and nothing else anywhere."""
    statement = site.statement
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or statement.value is not site.node:
        return None
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or site.scope.owner(target.id).node is not site.body:
        return None
    return target.id if [node for node in walk(site.body) if _stores(node, target.id)] == [target] else None


def _stores(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    return isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names


def _asked_where_made(own: OwnDdp, site: Site) -> str | None:
    """The test of the ``if`` right around a client, where it parts the processes."""
    around = next(blocks.enclosing(site.module, site.statement), None)
    if not isinstance(around, ast.If) or site.statement not in around.body or not own.parts_first(site.module, around):
        return None
    return ast.unparse(around.test)


def _logged(own: OwnDdp, made: Site, name: str) -> Iterator[Site]:
    """Yield the statements of the function that makes a client in which it is asked for something."""
    for node in own.program.nodes_of(made.body):
        if not isinstance(node, ast.Name) or node.id != name or not isinstance(node.ctx, ast.Load):
            continue
        called = made.module.parents[node]
        call = made.module.parents[called]
        if isinstance(called, ast.Attribute) and isinstance(call, ast.Call) and call.func is called:
            if isinstance(made.module.parents[call], ast.Expr):
                yield Site(made.module, made.scope, made.body, call)


def _change(own: OwnDdp, client: Client, first_rank: FirstRank) -> Iterator[Change]:
    made = client.made
    test = first_rank.known_at(made.module, made.node)
    told_later = test is None and first_rank.at(made.module, made.node) is not None
    if client.reason is not None or test is None:
        unknown = "the rank is not known yet: make it below the process group" if told_later else NO_WORD
        reason = client.reason or unknown
        own.leave(RULE, made.module, made.node, f"every process makes `{client.path}`: {reason}")
        return
    assert isinstance(made.node, ast.expr)
    message = f"`{client.path}` logs on the first process alone"
    edit = either_within(made.module, made.node, test.text, "None")
    yield Change(RULE, made.module, made.node, message, [Replace(made.node, edit)])
    for again in _made_again(own, client):
        assert isinstance(again.node, ast.expr)
        if _is_of_module(test, again):
            edit = either_within(again.module, again.node, test.text, "None")
            yield Change(RULE, again.module, again.node, message, [Replace(again.node, edit)])
        else:
            text = f"every process that loads such an object makes `{client.path}` again; {NO_WORD}"
            own.leave(RULE, again.module, again.node, text)
    logs = client.logs if _asks_for_local(own, test, made) else [*client.logs, *client.on_machines]
    by_path = sorted({path for _, path in logs})
    for path in by_path:
        rows = [
            (site.module, site.statement)
            for site, other in logs
            if other == path and not _is_on_first(own, site, client, test, first_rank)
        ]
        for module, first, last in adjacent(rows):
            yield Change(RULE, module, first, message, [Wrap(first, last, f"if {path} is not None:")])


def _asks_for_local(own: OwnDdp, test: Test, made: Site) -> bool:
    """Whether a test asks for the rank on the machine, so that one process of each has the client."""
    ranks = RankValues(own.program)
    asked = [part.left for part in walk(ast.parse(test.text, mode="eval")) if isinstance(part, ast.Compare)]
    found = [ranks.of(ast.copy_location(part, made.node), made.scope) for part in asked]
    return any(rank is not None and rank.is_local for rank in found)


def _made_again(own: OwnDdp, client: Client) -> Iterator[Site]:
    """Yield where an object that is loaded out of a checkpoint makes its client again: in its ``__setstate__``."""
    owner = _class_of(own, client.made)
    for site in own.program.calls_to(WRITERS) if owner is not None else ():
        statement = site.statement
        info = own.program.function_of(site.body)
        if info is None or info.name != "__setstate__" or _class_of(own, site) is not owner:
            continue
        if isinstance(statement, ast.Assign) and statement.value is site.node and len(statement.targets) == 1:
            if blocks.path_of(statement.targets[0]) == client.path and site.node is not client.made.node:
                yield site


def _class_of(own: OwnDdp, site: Site) -> object:
    info = own.program.function_of(site.body)
    return info.cls if info is not None else None


def _is_of_module(test: Test, site: Site) -> bool:
    """Whether a test reads no variable of a function, and so means the same in another one."""
    names = {part.id for part in walk(ast.parse(test.text, mode="eval")) if isinstance(part, ast.Name)}
    return not any(site.scope.owner(name).is_function for name in names) and "self" not in names


def _is_on_first(own: OwnDdp, site: Site, client: Client, test: Test, first_rank: FirstRank) -> bool:
    """Whether a condition around it asks what the client is made by, of the same names or of what they are given."""
    if any(_is_given(own, asked, test, site) for asked in conditions_at(site.module, site.statement)):
        return True
    if first_rank.at(site.module, site.node) != test:
        return False
    asked = ast.parse(test.text, mode="eval")
    if site.module is not client.made.module and not _are_same(own, asked, site, client.made):
        return False
    return ast.unparse(asked) in conditions_at(site.module, site.statement)


def _is_given(own: OwnDdp, asked: str, test: Test, site: Site) -> bool:
    """Whether ``rank == 0`` asks a parameter which each call gives what the test asks: ``args.rank``."""
    mine, other = (ast.parse(text, mode="eval").body for text in (asked, test.text))
    if not (isinstance(mine, ast.Compare) and isinstance(other, ast.Compare) and isinstance(mine.left, ast.Name)):
        return False
    info = own.program.function_of(site.body)
    if info is None or mine.left.id not in info.parameters or mine.left.id in _written(own, site):
        return False
    given = [info.argument(caller.call, mine.left.id) for caller in own.program.flow.callers(info)]
    mine.left = other.left
    return (
        bool(given)
        and ast.unparse(mine) == ast.unparse(other)
        and all(item is not None and ast.unparse(item) == ast.unparse(other.left) for item in given)
    )


def _written(own: OwnDdp, site: Site) -> set[str]:
    return {
        node.id
        for node in own.program.nodes_of(site.body)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }


def _are_same(own: OwnDdp, asked: ast.AST, site: Site, other: Site) -> bool:
    """Whether the names of a test hold the same in two files: ``config``, which a function of the other is given."""
    return all(
        own.program.flow.values(name, site.scope) == own.program.flow.values(name, other.scope) != set()
        for name in walk(asked)
        if isinstance(name, ast.Name)
    )
