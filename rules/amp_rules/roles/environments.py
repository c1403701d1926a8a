"""Environments that a program steps: what they give is no data that a loader could share out."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.torch.replication import ENVIRONMENTS

_MAKES = frozenset({"load", "make", "make_vec", "vector"})
_SEEDS = frozenset({"reset", "seed"})


def makes_environment(name: str) -> bool:
    """Whether a function of a library makes environments, by its qualified name."""
    return name.startswith(ENVIRONMENTS) and name.rpartition(".")[2] in _MAKES


def environment_of(program: Program) -> Site | None:
    """The first environment that a program makes."""
    for call, body, scope in program.calls():
        if any(map(makes_environment, program.callee_names(call, scope))):
            return Site(scope.module, scope, body, call)
    return None


def unseeded_environment(program: Program) -> Site | None:
    """The first environment that a program makes; None where some are seeded, which all processes would do alike."""
    made = None
    for call, body, scope in program.calls():
        if any(map(makes_environment, program.callee_names(call, scope))):
            made = made or Site(scope.module, scope, body, call)
        elif isinstance(call.func, ast.Attribute) and call.func.attr in _SEEDS and _is_seed(call):
            owners = program.flow.values(call.func.value, scope)
            if any(makes_environment(str(value.ref)) for value in owners if value.kind == "object"):
                return None
    return made


def _is_seed(call: ast.Call) -> bool:
    assert isinstance(call.func, ast.Attribute)
    return bool(call.args) or any(item.arg == "seed" for item in call.keywords)
