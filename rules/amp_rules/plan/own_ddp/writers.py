"""Logging clients that every process makes, and what they are asked to log."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.flow.statements import is_under_main_guard
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import RankValues
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.workers import spawned_workers
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.writers import WRITERS

_MAX_CALLERS = 3
"""Functions between a test of the rank and what is logged."""


@dataclass
class Client:
    """A logging client.

    Attributes:
        made: the call that makes it.
        path: the variable that holds it.
        logs: statements that every process runs and that ask it for something, with the variable that holds it there.
        on_machines: the same of those that the first process of each machine runs.
        reason: why it cannot be None on other processes, if that is so.
    """

    made: Site
    path: str
    logs: list[tuple[Site, str]] = field(default_factory=list)
    on_machines: list[tuple[Site, str]] = field(default_factory=list)
    reason: str | None = None


def clients(own: OwnDdp) -> list[Client]:
    """The clients that every process makes."""
    found = []
    ranks = RankValues(own.program)
    for site in own.program.calls_to(WRITERS):
        if site.module not in own.modules or own.reach(site.module, site.node) is not Reach.EVERY:
            continue
        assert isinstance(site.node, ast.Call)
        if own.is_own_file(site.module, site.node):
            continue
        statement = site.statement
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        path = blocks.path_of(target) if isinstance(target, (ast.Name, ast.Attribute)) else None
        if path is None or not isinstance(statement, ast.Assign) or statement.value is not site.node:
            found.append(Client(site, site.module.text(site.node), reason="it has no variable of its own"))
            continue
        client = Client(site, path)
        _follow(own, client)
        holder = own.may_be_own_file(site.module, site.node)
        if holder is not None:
            client.reason = f"its path {own.way_of_rank(holder)}"
        tag = _tag_of_rank(own, client, ranks)
        if tag is not None:
            client.reason = f"it logs `{tag}`, which tells the processes apart: the curves of all are wanted"
        found.append(client)
    return found


def made_on_import(own: OwnDdp) -> Iterator[tuple[Client, FunctionFacts]]:
    """Yield clients of files' own bodies by which started processes log, with what these are started with.

    A process that is spawned, and not forked off, runs the files once more, but for what is under the main guard.
    """
    started = spawned_workers(own.program)
    for site in own.program.calls_to(WRITERS) if started else ():
        statement = site.statement
        if site.module not in own.modules or not isinstance(site.body, ast.Module):
            continue
        assert isinstance(site.node, ast.Call)
        if not isinstance(statement, ast.Assign) or statement.value is not site.node or len(statement.targets) != 1:
            continue
        if is_under_main_guard(site.module, site.node) or own.may_be_own_file(site.module, site.node) is not None:
            continue
        client = Client(site, site.module.text(statement.targets[0]))
        _follow(own, client)
        if any(own.reach(log.module, log.node) is Reach.EVERY for log, _ in client.logs):
            yield client, started[0]


def _follow(own: OwnDdp, client: Client) -> None:
    """Find all that is asked of a client."""
    ranks = RankValues(own.program)
    last = {call.attr for call in _methods(own, client)}
    for node, body, scope in own.program.nodes():
        if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
            continue
        module = scope.module
        parent = module.parents[node]
        values = own.program.flow.values(node, scope)
        if not any(value.site is client.made.node for value in values):
            # Something unknown that is asked for the same may be the client too.
            if (
                not values
                and isinstance(parent, ast.Attribute)
                and parent.attr in last
                and parent.attr.startswith("add_")
            ):
                client.reason = f"`{module.text(node)}` may be it, too"
            continue
        if isinstance(parent, ast.Attribute):
            call = module.parents[parent]
            statement = module.parents.get(call)
            is_of_one = own.reach(module, node) is Reach.ONE and not _names_another(own, module, node)
            if _is_tested(own, node, scope.module):
                continue
            if is_of_one and not asks_for_machine(own, ranks, Site(module, scope, body, node)):
                continue
            if isinstance(call, ast.Call) and isinstance(statement, ast.Expr) and module in own.modules:
                path = blocks.path_of(node)
                if path is not None:
                    logs = client.on_machines if is_of_one else client.logs
                    logs.append((Site(module, scope, body, statement), path))
                    continue
            if is_of_one:
                continue
            client.reason = f"`{module.text(call)}` needs it on every process"
        elif isinstance(parent, (ast.Call, ast.keyword)):
            call = parent if isinstance(parent, ast.Call) else module.parents[parent]
            if isinstance(call, ast.Call) and not own.program.flow.callees(call):
                client.reason = f"`{module.text(call)}` is given it"


def asks_for_machine(own: OwnDdp, ranks: RankValues, site: Site, depth: int = _MAX_CALLERS) -> bool:
    """Whether the tests of ranks before a place all ask for that on the machine: one process of each comes there."""
    asked = [
        rank.is_local
        for test, _ in own.branches(site.module, site.node)
        for part in walk(test)
        if isinstance(part, ast.Compare) and (rank := ranks.of(part.left, site.scope)) is not None
    ]
    if asked:
        return all(asked)
    info = own.program.function_of(site.body) if depth else None
    callers = own.program.flow.callers(info) if info is not None else []
    return any(asks_for_machine(own, ranks, calling(caller), depth - 1) for caller in callers)


def _tag_of_rank(own: OwnDdp, client: Client, ranks: RankValues) -> str | None:
    """A name with the rank in it, under which every process logs: ``f"loss_{rank}"``."""
    for tag, scope in _tags(own, client):
        asked = (part for part in walk(tag) if isinstance(part, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)))
        if any(ranks.of(part, scope) is not None for part in asked):
            return scope.module.text(tag)
    return None


def _tags(own: OwnDdp, client: Client) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the names under which something is logged, and what every process gives a function for a part of one."""
    for site, _ in client.logs:
        call = site.statement.value if isinstance(site.statement, ast.Expr) else None
        if not isinstance(call, ast.Call):
            continue
        tag = keyword(call, "tag") or next(iter(call.args), None)
        if tag is None:
            continue
        yield tag, site.scope
        info = own.program.function_of(site.body)
        if info is None:
            continue
        names = {part.id for part in walk(tag) if isinstance(part, ast.Name)} & set(info.parameters)
        for caller in own.program.flow.callers(info) if names else ():
            if own.reach(caller.scope.module, caller.call) is Reach.EVERY:
                given = (info.argument(caller.call, name) for name in sorted(names))
                yield from ((item, caller.scope) for item in given if item is not None)


def _methods(own: OwnDdp, client: Client) -> list[ast.Attribute]:
    found = []
    for node, _, scope in own.program.nodes():
        if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
            values = own.program.flow.values(node.value, scope)
            if any(value.site is client.made.node for value in values):
                found.append(node)
    return found


def _names_another(own: OwnDdp, module: Module, node: ast.AST) -> bool:
    """Whether a test around asks for a process that may not be the first: ``if local_rank == args.print_rank:``."""
    return any(
        isinstance(part, ast.Compare)
        and isinstance(part.ops[0], ast.Eq)
        and names_rank(part.left)
        and literal(part.comparators[0]) is ...
        for test, _ in own.branches(module, node)
        for part in walk(test)
    )


def _is_tested(own: OwnDdp, node: ast.Name | ast.Attribute, module: Module) -> bool:
    """Whether a test around asks whether there is a client."""
    path = blocks.path_of(node)
    return any(
        isinstance(item, (ast.Name, ast.Attribute)) and blocks.path_of(item) == path
        for test, _ in own.branches(module, node)
        for item in walk(test)
    )
