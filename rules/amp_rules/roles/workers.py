"""Functions that the script runs in processes of its own."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from weakref import WeakKeyDictionary

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import keyword
from amp_rules.source.scopes import Scope
from amp_rules.torch.distributed import (
    LIBRARY_LAUNCHERS,
    OTHER_PROCESS_WRAPPERS,
    POOL_METHODS,
    PROCESS_POOLS,
    PROCESSES,
    SPAWNS,
)

_FOUND: WeakKeyDictionary[Program, list[tuple[Site, FunctionFacts]]] = WeakKeyDictionary()
"""What is known of each program: several parts of the plan ask for it."""


def workers(program: Program) -> list[tuple[Site, FunctionFacts]]:
    """Each function that runs in another process, with the call or the definition that makes it so."""
    known = _FOUND.get(program)
    if known is None:
        known = _FOUND[program] = [*_workers(program)]
    return known


def _workers(program: Program) -> Iterator[tuple[Site, FunctionFacts]]:
    for call, body, scope in program.calls():
        for argument in _given(program, call, scope):
            for value in program.flow.values(argument, scope):
                info = value.ref.find_method("__call__") if value.kind == "instance" else value.ref
                if isinstance(info, FunctionFacts):
                    yield Site(scope.module, scope, body, call), info
    for info in program.flow.functions.values():
        if {name for name, _ in info.decorators} & OTHER_PROCESS_WRAPPERS:
            yield Site(info.module.module, program.flow.scopes[info.node], info.node, info.node), info
        owner = program.flow.class_of(info)
        if owner is not None and info.name == "run":
            if owner.external_bases() & PROCESSES:
                yield Site(info.module.module, program.flow.scopes[info.node], info.node, info.node), info


def training_workers(program: Program) -> list[tuple[Site, FunctionFacts]]:
    """Those of them that train."""
    return [
        (site, info)
        for site, info in workers(program)
        if isinstance(info.node, ast.FunctionDef) and any(program.runs_backward(item) for item in info.node.body)
    ]


def run_in_workers_alone(program: Program) -> set[ast.AST]:
    """What runs in processes that train, where the one that starts them does not train itself."""
    workers_there = {info.node for _, info in training_workers(program)}
    if not workers_there:
        return set()
    reached = of_first_process(program, workers_there)
    if any(site.body in reached for site in program.backwards) or calls_one_of(program, reached, workers_there):
        return set()
    inner = [node for body in workers_there for node in blocks.walk_body(body)]
    return (program.called_from(inner) | workers_there) - reached


def of_first_process(program: Program, apart: Collection[ast.AST]) -> set[ast.AST]:
    """What runs in the process that the script is started in, but for functions that are started in others."""
    calls = [node for node in blocks.walk_body(program.entry.tree) if isinstance(node, ast.Call)]
    return program.called_from(calls, apart) | {program.entry.tree}


def calls_one_of(program: Program, bodies: Collection[ast.AST], functions: Collection[ast.AST]) -> bool:
    """Whether something in a body calls one of some functions itself, besides starting it elsewhere."""
    return any(
        info.node in functions
        for body in bodies
        for call in program.nodes_of(body)
        if isinstance(call, ast.Call)
        for info in program.flow.callees(call)
    )


def spawned_workers(program: Program) -> list[FunctionFacts]:
    """Those that train in processes which begin anew: forked ones go on with what the files have made already."""
    spawns = {site.node for site in program.calls_to(SPAWNS)}
    return [
        info
        for site, info in (training_workers(program) if spawns else ())
        if site.node in spawns and isinstance(site.node, ast.Call) and keyword(site.node, "start_method") is None
    ]


def _given(program: Program, call: ast.Call, scope: Scope) -> list[ast.expr]:
    """The arguments of a call that may be functions which another process runs."""
    names = program.callee_names(call, scope)
    if names & PROCESSES:
        return [*call.args[:1], *(item.value for item in call.keywords if item.arg in ("target", "fn"))]
    if names & (OTHER_PROCESS_WRAPPERS | LIBRARY_LAUNCHERS):
        return call.args[:1]
    if isinstance(call.func, ast.Attribute) and call.func.attr in POOL_METHODS:
        owners = program.flow.values(call.func.value, scope)
        if any(value.kind in ("object", "external") and value.ref in PROCESS_POOLS for value in owners):
            return [*call.args[:1], *(item.value for item in call.keywords if item.arg in ("func", "fn"))]
    return []
