"""Networks that a script loads whole and trains no further, and that its steps run in training mode.

Of what they are made nothing is known. Batch norm in them would keep the statistics of one process's batches.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.precision import Precision
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import values_given
from amp_rules.torch.devices import MOVING_MODELS
from amp_rules.torch.file_access import WEIGHT_LOADERS

Place = tuple[Module, ast.stmt, str]
"""The statement behind which a variable holds such a network for good."""


def in_training_mode(program: Program, precision: Precision) -> list[Place]:
    """Where such networks are ready, each once."""
    if not program.calls_to(WEIGHT_LOADERS):
        return []
    bodies = {blocks.body_of(run.module, run.first) for run in precision.training}
    found: dict[Place, None] = {}
    for call, body, scope in program.calls():
        if body not in bodies or not isinstance(call.func, ast.Name) or program.flow.values(call.func, scope):
            continue
        if _trains(program, body, call.func.id):
            for site, name in _variables(program, Site(scope.module, scope, body, call.func), call.func.id):
                place = _ready(program, site, name)
                if place is not None:
                    found[site.module, place, name] = None
    return list(found)


def _trains(program: Program, body: ast.AST, name: str) -> bool:
    """Whether a body puts a variable into training mode: ``net.train()``."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "train"
        and _is(node.func.value, name)
        and all(literal(item) is True for item in values_given(node))
        for node in program.nodes_of(body)
    )


def _variables(program: Program, site: Site, name: str) -> Iterator[tuple[Site, str]]:
    """Yield the variable itself, or of a parameter those that the calls of its function give."""
    info = program.flow.functions.get(site.body)
    if info is None or name not in info.positional:
        yield site, name
        return
    for caller in program.flow.callers(info):
        given = argument_at(caller.call, name, info.positional.index(name))
        if isinstance(given, ast.Name):
            module = caller.scope.module
            yield Site(module, caller.scope, blocks.body_of(module, caller.call), caller.call), given.id


def _ready(program: Program, site: Site, name: str) -> ast.stmt | None:
    """The last statement of a suite that loads a network and moves it; None where it is not loaded, or trained."""
    nodes = program.nodes_of(site.body)
    if any(isinstance(node, ast.Attribute) and node.attr == "parameters" and _is(node.value, name) for node in nodes):
        return None
    assigned = [
        node for node in nodes if isinstance(node, ast.Assign) and any(_is(item, name) for item in node.targets)
    ]
    if not assigned or not _is_loaded(program, nodes, assigned[0].value, site.scope):
        return None
    suite = blocks.place(site.module, assigned[0]).suite
    if not all(item in suite and (item is assigned[0] or _moves(item.value, name)) for item in assigned):
        return None
    if any(isinstance(item, blocks.LOOPS) for item in blocks.enclosing(site.module, assigned[0])):
        return None
    moved = [item for item in suite if isinstance(item, ast.Expr) and _moves(item.value, name)]
    return max([*assigned, *moved], key=suite.index)


def _is_loaded(program: Program, nodes: list[ast.AST], value: ast.expr, scope: Scope) -> bool:
    """Whether a value is what ``torch.load`` gives, or an entry of it: ``checkpoint["encoder"].to(device)``."""
    while _is_move(value):
        assert isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
        value = value.func.value
    if isinstance(value, ast.Subscript):
        held = value.value
        if isinstance(held, ast.Name):
            given = [
                node.value
                for node in nodes
                if isinstance(node, ast.Assign) and any(_is(item, held.id) for item in node.targets)
            ]
            return bool(given) and all(_loads(program, item, scope) for item in given)
        value = held
    return _loads(program, value, scope)


def _loads(program: Program, value: ast.expr, scope: Scope) -> bool:
    return isinstance(value, ast.Call) and bool(program.callee_names(value, scope) & WEIGHT_LOADERS)


def _moves(value: ast.expr, name: str) -> bool:
    return _is_move(value) and isinstance(value, ast.Call) and any(_is(node, name) for node in ast.walk(value.func))


def _is_move(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in MOVING_MODELS


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
