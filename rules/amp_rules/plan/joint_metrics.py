"""Metrics of torchmetrics, and classes of the project made of them: ``compute()`` puts their states together.

It does so over all processes, by the function that ``add_state`` is given for a state. Without one a tensor becomes one
with an entry of each process.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import ClassInfo
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at, literal
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk

_METRICS = "torchmetrics."
_DEFAULT, _REDUCED = 1, 2
"""Places of arguments: ``add_state(name, default, dist_reduce_fx)``."""

_ALONE = "sync_on_compute"
"""An option of a metric that keeps the numbers of each process apart."""


def is_joint(info: ClassInfo) -> bool:
    """Whether the objects of a class of the project put their numbers together over the processes themselves."""
    return any(name.startswith(_METRICS) for name in info.external_bases())


def keeps_jointly(program: Program, keeper: ast.expr, scope: Scope) -> bool:
    """Whether a variable may hold such an object."""
    return any(value.kind == "instance" and is_joint(value.ref) for value in program.flow.values(keeper, scope))


def asks_joint_metric(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call asks an object of the library, or of such a class, for the number of all processes.

    Not where the script says anywhere that the processes keep theirs apart.
    """
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "compute":
        return False
    if any(_ALONE in module.source.text for module in program.flow.modules):
        return False
    return any(
        value.name.startswith(_METRICS) if value.kind == "object" else value.kind == "instance" and is_joint(value.ref)
        for value in program.flow.values(call.func.value, scope)
    )


def names_joint_metrics(program: Program) -> bool:
    """Whether a script names the library at all."""
    return any(_METRICS.rstrip(".") in module.source.text for module in program.flow.modules)


def stacked_states(program: Program) -> Iterator[Site]:
    """Yield the first state of each such class, which the script makes objects of, that nothing reduces."""
    told: set[ast.AST] = set()
    for node, _, scope in program.nodes() if names_joint_metrics(program) else ():
        if not isinstance(node, ast.Call):
            continue
        for value in program.flow.values(node, scope):
            if value.kind != "instance" or value.site is not node or not is_joint(value.ref):
                continue
            for owner in value.ref.mro():
                state = None if owner.facts.node in told else _stacked(owner)
                told.add(owner.facts.node)
                located = program.locate(state) if state is not None else None
                if located is not None and state is not None and _ALONE not in located[1].module.source.text:
                    yield Site(located[1].module, located[1], located[0], state)


def _stacked(owner: ClassInfo) -> ast.Call | None:
    for node in walk(owner.facts.node):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_state"):
            continue
        if any(isinstance(item, ast.Starred) for item in node.args) or any(item.arg is None for item in node.keywords):
            continue
        reduced, default = argument_at(node, "dist_reduce_fx", _REDUCED), argument_at(node, "default", _DEFAULT)
        is_tensor = isinstance(default, ast.Call) and blocks.path_of(default.func) != "list"
        if is_tensor and (reduced is None or literal(reduced) is None):
            return node
    return None
