"""Evaluations of what a script never prepares: what that gives in half would stay half, which NumPy refuses.

A model that is prepared gives float32. A part of it, called by itself, does not: a product of what it gave with another
tensor would stop outside of the region, and an exponential would overflow there.
"""

from __future__ import annotations

import ast

from amp_rules.flow.values import Value
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.model_homes.homes import Homes
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.roles.sites import calling
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import children, last_name, walk
from amp_rules.torch.file_access import WEIGHT_LOADERS
from amp_rules.torch.models import COPIES


def without_unprepared(
    program: Program, homes: list[Home], training: list[StatementRun], runs: list[StatementRun]
) -> list[StatementRun]:
    """The regions but for those that evaluate where no path from the script's start has prepared a model.

    A trainer that prepares its model in ``train`` evaluates a plain one in the script that only calls ``evaluate``.
    """
    if not homes:
        return runs
    paths = _Paths(program, {home.body for home in homes})
    starts = {run.first for run in training}
    return [
        run
        for run in runs
        if run.first in starts
        or (paths.lead_past(blocks.body_of(run.module, run.first)) and not makes_model(program, homes, run))
    ]


def makes_model(program: Program, homes: list[Home], run: StatementRun) -> bool:
    """Whether a region stands where a model is made, which runs its layers to see how large the next one has to be."""
    info = program.function_of(blocks.body_of(run.module, run.first))
    owner = program.flow.class_of(info) if info is not None and info.name == "__init__" else None
    if owner is not None and is_module(Value("instance", owner)):
        return True
    called = program.called_from(node for item in run.statements() for node in walk(item))
    return any(home.body in called for home in homes)


def without_parts_alone(program: Program, training: list[StatementRun], runs: list[StatementRun]) -> list[StatementRun]:
    """The regions but for those that evaluate nothing but parts of the models that are prepared."""
    roots = Homes(program).roots()
    starts = {run.first for run in training}
    return [run for run in runs if run.first in starts or not _runs_parts_alone(program, roots, run)]


def _runs_parts_alone(program: Program, roots: list[Value], run: StatementRun) -> bool:
    calls = [node for item in run.statements() for node in walk(item) if isinstance(node, ast.Call)]
    located = [(call, where[1]) for call in calls if (where := program.locate(call)) is not None]
    models = {value for call, scope in located for value in program.called_models(call, scope)}
    called = {value for model in models for value in program.held_as(model)}
    trained = {value for value in called if program.is_trained(value)}
    return bool(trained) and not any(_is_one_of(value, roots) for value in trained)


def without_others(
    program: Program, homes: list[Home], training: list[StatementRun], runs: list[StatementRun]
) -> list[StatementRun]:
    """The regions but for those that may evaluate a model which nobody prepares, as the prepared one is evaluated.

    A teacher is one, the network that takes the best weights at the end, and the one that a file gives back whole.
    Where all that it gives goes into a loss of the region, or is compared, it may stay half.
    """
    roots = Homes(program).roots()
    starts = {run.first for run in training}
    return [
        run
        for run in runs
        if run.first in starts
        or not (calls := _runs_others(program, roots, run) | _runs_loaded(program, homes, run))
        or not _is_read_below(run, calls)
    ]


def _runs_others(program: Program, roots: list[Value], run: StatementRun) -> set[ast.AST]:
    """The calls of a region that may run such a model, or another one in the place of the prepared one."""
    calls = [node for item in run.statements() for node in walk(item) if isinstance(node, ast.Call)]
    found: set[ast.AST] = set()
    for call in calls:
        located = program.locate(call)
        called = program.called_models(call, located[1]) if located is not None else set()
        alone = [value for value in called if value not in roots and _is_on_its_own(program, value)]
        if any(_is_made_alike(value, roots) for value in alone):
            found.add(call)
        elif alone and not called.isdisjoint(roots):
            parts = program.with_parts(roots)
            found |= {call} if any(value not in parts for value in alone) else set()
    return found


def _runs_loaded(program: Program, homes: list[Home], run: StatementRun) -> set[ast.AST]:
    """The calls of a region that run what a file has just given back whole."""
    calls = [node for item in run.statements() for node in walk(item) if isinstance(node, ast.Call)]
    return {call for call in calls if holds_another(program, homes, run.module, call)}


def holds_another(program: Program, homes: list[Home], module: Module, call: ast.Call) -> bool:
    """Whether the variable that is called holds another model than the prepared one by then, or may hold one."""
    return _is_loaded(program, homes, module, call) or _may_be_made_anew(program, homes, module, call)


def _may_be_made_anew(program: Program, homes: list[Home], module: Module, call: ast.Call) -> bool:
    """Whether a new model may be in the variable that held the prepared one: ``model = Net()`` to load the best into.

    It has the weights of the prepared one, and no hooks that make its output float32.
    """
    name, body = call.func, blocks.body_of(module, call)
    prepared = [home.statement.lineno for home in homes if home.body is body and home.variable == blocks.path_of(name)]
    above = [line for line in prepared if line < call.lineno]
    if not isinstance(name, ast.Name) or not above:
        return False
    around = {body, *module.ancestors(call)}
    given = [
        node
        for node in program.nodes_of(body)
        if isinstance(node, ast.Assign)
        and max(above) < node.lineno < call.lineno
        and any(isinstance(item, ast.Name) and item.id == name.id for item in node.targets)
        and not blocks.exclude_each_other(module, node, call)
    ]
    kept = [node for node in given if name.id in blocks.reads(node.value)]
    last = max((node.lineno for node in given if node not in kept and module.parents[node] in around), default=0)
    return any(node.lineno >= last and _makes_model(program, homes, node.value) for node in given if node not in kept)


def _makes_model(program: Program, homes: list[Home], value: ast.expr) -> bool:
    """Whether a call makes a model of a class of the project, given no model, and nothing of it prepares one."""
    located = program.locate(value)
    if not isinstance(value, ast.Call) or located is None:
        return False
    scope = located[1]
    owner = value.func.value if isinstance(value.func, ast.Attribute) else value.func
    classes = program.flow.values(value.func, scope) | program.flow.values(owner, scope)
    if not any(item.kind == "class" for item in classes) or not any(map(is_module, program.flow.values(value, scope))):
        return False
    given = [*value.args, *(item.value for item in value.keywords)]
    if any(program.roles.modules(item, scope) for item in given if isinstance(item, (ast.Name, ast.Attribute))):
        return False
    return {home.body for home in homes}.isdisjoint(program.called_from([value]))


def _is_loaded(program: Program, homes: list[Home], module: Module, call: ast.Call) -> bool:
    """Whether the variable that is called holds a model of a file for certain, ``model = torch.load(path)``.

    The same name may hold the prepared model before.
    """
    name = call.func
    if not isinstance(name, ast.Name) or not program.calls_to(WEIGHT_LOADERS):
        return False
    body = blocks.body_of(module, call)
    around = {body, *module.ancestors(call)}
    given = [
        node
        for node in program.nodes_of(body)
        if isinstance(node, ast.Assign)
        and any(isinstance(item, ast.Name) and item.id == name.id for item in node.targets)
        and node.lineno < call.lineno
        and module.parents[node] in around
    ]
    last = max(given, key=lambda node: node.lineno, default=None)
    located = program.locate(last.value) if last is not None else None
    if last is None or located is None:
        return False
    values = program.flow.values(last.value, located[1])
    is_prepared = any(
        home.body is body and home.variable == name.id and last.lineno <= home.statement.lineno <= call.lineno
        for home in homes
    )
    return bool(values) and all(value.name in WEIGHT_LOADERS for value in values) and not is_prepared


def _is_on_its_own(program: Program, value: Value) -> bool:
    """Whether a model is none that a step trains; a copy of a prepared one is prepared as well."""
    if value.kind not in ("instance", "object") or not isinstance(value.site, ast.Call) or program.is_trained(value):
        return False
    located = program.locate(value.site)
    return located is not None and not program.callee_names(value.site, located[1]) & COPIES


def _is_made_alike(value: Value, roots: list[Value]) -> bool:
    return any(root.kind == value.kind and root.ref == value.ref for root in roots)


def _is_read_below(run: StatementRun, calls: set[ast.AST]) -> bool:
    """Whether something outside of a region reads a tensor of it that may be half, in a way in which that matters."""
    if isinstance(run.last, ast.Return):
        return True
    names: set[str] = set()
    for item in run.statements():
        if isinstance(item, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and item.value is not None:
            parts = _tensors(item.value)
            if not calls.isdisjoint(parts) or any(blocks.path_of(part) in names for part in parts):
                names |= blocks.writes(item)
    inner = {node for item in run.statements() for node in walk(item)}
    return any(
        isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and node not in inner
        and blocks.path_of(node) in names
        and not _is_of_any_type(run, node)
        for node in blocks.walk_body(blocks.body_of(run.module, run.first))
    )


def _tensors(value: ast.expr) -> list[ast.AST]:
    """The parts of an expression but for those that are numbers: ``loss.item()``."""
    found: list[ast.AST] = []
    pending: list[ast.AST] = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "item":
            continue
        found.append(part)
        pending += children(part)
    return found


def _is_of_any_type(run: StatementRun, node: ast.expr) -> bool:
    """Whether what is done with a tensor is the same whatever type it has: ``scores.argmax(1)``."""
    parent = run.module.parents[node]
    if isinstance(parent, ast.Attribute) and parent.attr == "data":
        return _is_of_any_type(run, parent)
    if isinstance(parent, ast.Attribute):
        return parent.attr in _OF_ANY_TYPE
    return isinstance(parent, ast.Call) and parent.func is not node and last_name(parent.func) in _OF_ANY_TYPE


_OF_ANY_TYPE = frozenset(
    {"argmax", "argmin", "argsort", "max", "topk", "shape", "size", "numel", "float", "item", "len"}
)


def _is_one_of(value: Value, roots: list[Value]) -> bool:
    """Whether a model is prepared, or an object of a class of which one is."""
    return value in roots or (
        value.kind == "instance" and any(root.kind == "instance" and root.ref is value.ref for root in roots)
    )


class _Paths:
    """The calls that lead to a function."""

    def __init__(self, program: Program, preparing: set[ast.AST]) -> None:
        self._program = program
        self._preparing = preparing

    def lead_past(self, body: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> bool:
        """Whether all that calls a function, up to the script itself, prepares a model or calls what does."""
        if body in seen or body in self._preparing or not self._runs(body).isdisjoint(self._preparing):
            return True
        info = self._program.function_of(body)
        if info is None:
            return not isinstance(body, ast.Module)
        callers = [calling(item) for item in self._program.flow.callers(info)]
        return all(self.lead_past(item.body, seen | {body}) for item in callers)

    def _runs(self, body: ast.AST) -> set[ast.AST]:
        return self._program.called_from(self._program.nodes_of(body))
