"""Functions that the script runs in processes of its own.

What trains in one of them starts the runtime there: the process of the main path does not train, and a new process
knows nothing of what the first one started.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.roles.steps import Program, Site
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.torch.distributed import OTHER_PROCESS_WRAPPERS, POOL_METHODS, PROCESS_POOLS, PROCESSES


def workers(program: Program) -> Iterator[tuple[Site, FunctionFacts]]:
    """Yield each function that runs in another process, with the call or the definition that makes it so."""
    for call, body, scope in program.calls():
        for argument in _given(program, call, scope):
            for value in program.flow.values(argument, scope):
                if value.kind == "function":
                    yield Site(scope.module, scope, body, call), value.ref
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


def given_to(program: Program, info: FunctionFacts, name: str) -> Iterator[tuple[ast.expr | None, Scope]]:
    """Yield what a function that runs in other processes is given for a parameter; None where that is not plain."""
    for site, other in workers(program):
        if other is info:
            yield _given_for(program, site, info, name), site.scope


def _given_for(program: Program, site: Site, info: FunctionFacts, name: str) -> ast.expr | None:
    """``args`` of ``mp.spawn(worker, args=(count, args))``, whose function is given the rank first."""
    call = site.node
    names = program.callee_names(call, site.scope) & PROCESSES if isinstance(call, ast.Call) else frozenset()
    if not (isinstance(call, ast.Call) and names) or name not in info.positional:
        return None
    starts_several = not any(item.endswith(".Process") for item in names)
    given = next((item.value for item in call.keywords if item.arg == "args"), None)
    if given is None and starts_several and len(call.args) > 1:
        given = call.args[1]
    index = info.positional.index(name) - starts_several
    if not isinstance(given, ast.Tuple) or any(isinstance(item, ast.Starred) for item in given.elts):
        return None
    return given.elts[index] if 0 <= index < len(given.elts) else None


def reasons(program: Program) -> Iterator[Declined]:
    """Yield the places from where something trains that the start of the runtime would not reach."""
    found = {info.node: (site, info) for site, info in training_workers(program)}
    reached = next(iter(found), None)
    for node, (site, info) in found.items():
        if node is not reached:
            yield declining.decline(
                declining.UNKNOWN_STEP,
                site.module,
                site.node,
                f"`{info.name}` trains in its own process, where nothing would start the runtime",
                f"call `amp.init(...)` at the head of `{info.name}`, and migrate its step by hand",
            )


def _given(program: Program, call: ast.Call, scope: Scope) -> list[ast.expr]:
    """The arguments of a call that may be functions which another process runs."""
    names = program.callee_names(call, scope)
    if names & PROCESSES:
        return [*call.args[:1], *(item.value for item in call.keywords if item.arg in ("target", "fn"))]
    if names & OTHER_PROCESS_WRAPPERS:
        return call.args[:1]
    if isinstance(call.func, ast.Attribute) and call.func.attr in POOL_METHODS:
        owners = program.flow.values(call.func.value, scope)
        if any(value.kind in ("object", "external") and value.ref in PROCESS_POOLS for value in owners):
            return [*call.args[:1], *(item.value for item in call.keywords if item.arg in ("func", "fn"))]
    return []
