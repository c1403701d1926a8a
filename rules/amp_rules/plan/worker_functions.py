"""Functions that the script runs in processes of its own.

What trains in one of them starts the runtime there: the process of the main path does not train, and a new process
knows nothing of what the first one started.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.workers import training_workers, workers
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.torch.distributed import PROCESSES


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
