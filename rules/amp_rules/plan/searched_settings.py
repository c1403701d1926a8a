"""Searches for settings that run the training: each process would search by itself, and train with other settings.

``study.optimize(objective, n_trials=50)`` of optuna draws the width of a model, and no seed of the script is that of
its sampler. Where the sampler has a seed, and the processes share no storage, all of them try the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.statements import is_main_guard
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.index import keyword
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none, walk
from amp_rules.torch.searches import (
    OWN_TRIALS,
    SEARCHES,
    SEEDS_OF_SEARCH,
    SHARED_BETWEEN_SEARCHES,
    STUDIES,
)

_MAX_CALLERS = 4
"""Functions between the start of a script and a search; a longer chain counts as always run."""


def reasons(program: Program) -> Iterator[Declined]:
    """Yield the first search that trains, and that each process would make by itself."""
    for call, body, scope in program.calls():
        if not _searches(program, call, scope) or _is_alike(program, call, scope):
            continue
        site, trained = Site(scope.module, scope, body, call), _trained(program, call, scope)
        if not trained or (_is_one_way(program, site) and _is_run_otherwise(program, trained)):
            continue
        yield declining.decline(
            declining.LOCAL_DECISION,
            site.module,
            call,
            f"`{site.module.text(call)}` chooses what each trial trains with, and each process would search by itself: "
            "they would train models that differ",
            "search in one process (`--no-ddp`), and train in several with what was found",
        )
        return


def _searches(program: Program, call: ast.Call, scope: Scope) -> bool:
    if program.callee_names(call, scope) & SEARCHES:
        return True
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr != "optimize":
        return False
    return any(value.ref in STUDIES for value in program.flow.values(function.value, scope))


def _is_alike(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether all processes try the same, as what chooses has a seed."""
    if program.callee_names(call, scope) & OWN_TRIALS:
        return False
    owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    made = [call, *_made(program, owner)]
    made += _made(program, [given for part in made if (given := keyword(part, "sampler")) is not None])
    names = {item.arg for part in made for item in part.keywords if not is_none(item.value)}
    return bool(names & SEEDS_OF_SEARCH) and not names & SHARED_BETWEEN_SEARCHES


def _made(program: Program, nodes: list[ast.expr]) -> list[ast.Call]:
    """The calls that make what expressions hold."""
    found = [(node, located[1]) for node in nodes if (located := program.locate(node)) is not None]
    values = [value for node, scope in found for value in program.flow.values(node, scope)]
    return [value.site for value in values if isinstance(value.site, ast.Call)]


def _trained(program: Program, call: ast.Call, scope: Scope) -> set[ast.AST]:
    """The functions with a backward pass, or that run one, which a search runs: also ``partial(objective, data)``."""
    given = [
        value.ref
        for argument in [*call.args, *(item.value for item in call.keywords)]
        for part in walk(argument)
        if isinstance(part, (ast.Name, ast.Attribute, ast.Lambda))
        for value in program.flow.values(part, scope)
        if value.kind == "function"
    ]
    run = program.called_from({item for info in given for item in info.body})
    infos = [*given, *(info for body in run if (info := program.function_of(body)) is not None)]
    return {info.node for info in infos if any(map(program.runs_backward, info.body))}


def _is_one_way(program: Program, site: Site, depth: int = 0) -> bool:
    """Whether a condition chooses a search: ``if args.tune: study.optimize(objective)``."""
    for around in blocks.enclosing(site.module, site.node):
        if isinstance(around, ast.If) and not is_main_guard(around):
            return True
    info = program.function_of(site.body)
    callers = program.flow.callers(info) if info is not None and depth < _MAX_CALLERS else []
    return bool(callers) and all(_is_one_way(program, calling(item), depth + 1) for item in callers)


def _is_run_otherwise(program: Program, trained: set[ast.AST]) -> bool:
    """Whether something trains that no search runs, or runs one of the functions of the search besides."""
    if any(site.body not in trained for site in program.backwards):
        return True
    infos = [info for body in trained if (info := program.function_of(body)) is not None]
    return any(calling(item).body not in trained for info in infos for item in program.flow.callers(info))
