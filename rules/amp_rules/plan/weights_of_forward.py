"""Weights that a forward pass makes anew: of a layer that it makes itself, or in the place of those that are trained.

``nn.Linear(...)`` in ``forward`` draws its weights in each pass, on each process its own, and no optimizer trains them.
``self.fc.weight = nn.Parameter(...)`` there takes a parameter out of the model that the optimizer goes on to step.
``nn.Embedding(..., max_norm=1)`` shortens the rows that are looked up, which on each process are others.
``functional_call(model, weights, (x,))`` runs the model with weights that were worked out of those that are trained.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.model_homes.home import made_at
from amp_rules.plan.weight_writes import WeightWrites
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.models import DRAWING_THEIR_WEIGHTS, LENGTH_OF_ROWS
from amp_rules.torch.wrappers import CALLS_WITH_WEIGHTS

_MAX_CALLS = 4
"""Constructors that hand an argument on to each other."""


def reasons(program: Program) -> Iterator[Declined]:
    """Yield the places where the forward pass of a trained model makes weights."""
    yield from _shortened(program)
    yield from _given_others(program)
    writes = WeightWrites(program)
    for body in _run_by_forward(program):
        scope = program.flow.scopes[body]
        for node in program.nodes_of(body):
            is_kept = _is_kept_once(scope.module, node)
            if isinstance(node, ast.Assign) and writes.replaces(node, scope) and not (is_kept and _is_own(node)):
                yield declining.decline(
                    declining.GRADIENTS_OUTSIDE,
                    scope.module,
                    node,
                    f"`{scope.module.text(node.targets[0])}` is a new parameter after each forward pass, and the "
                    "optimizer steps the old one, which no longer belongs to the prepared model",
                    "write into the parameter: `with torch.no_grad(): parameter.copy_(...)`; for spectral norm take "
                    "`torch.nn.utils.parametrizations.spectral_norm`",
                )
            elif isinstance(node, ast.Call) and not is_kept and _draws_weights(program, node, scope):
                yield declining.decline(
                    declining.GRADIENTS_OUTSIDE,
                    scope.module,
                    node,
                    f"`{scope.module.text(node)}` is made in each forward pass, with weights that each process draws "
                    "for itself and that no optimizer trains",
                    "make the layer in `__init__`, where the optimizer and `amp.prepare_model` see its weights",
                )


def _given_others(program: Program) -> Iterator[Declined]:
    """Yield the calls that train a model with weights in the place of its own."""
    for site in program.calls_to(CALLS_WITH_WEIGHTS):
        call = site.node
        if not isinstance(call, ast.Call) or program.is_model_code(site.body) or program.is_without_gradients(call):
            continue
        if any(map(program.is_trained, program.called_models(call, site.scope))):
            yield declining.decline(
                declining.GRADIENTS_OUTSIDE,
                site.module,
                call,
                f"`{site.module.text(call)}` runs the model with other weights than its own: what averages gradients "
                "over the processes takes those that the model holds, and stops at weights that were computed",
                "work out the weights in the `forward` of a module that holds the model, and prepare that module",
            )


def _shortened(program: Program) -> Iterator[Declined]:
    """Yield the trained tables that shorten their rows as they are looked up."""
    for value in sorted(program.with_parts(program.trained), key=made_at):
        position = LENGTH_OF_ROWS.get(value.name) if value.kind == "object" and not value.is_result else None
        located = program.locate(value.site) if isinstance(value.site, ast.Call) else None
        if position is None or located is None or not isinstance(value.site, ast.Call):
            continue
        call, module = value.site, located[1].module
        given = keyword(call, "max_norm")
        if given is None and len(call.args) > position and not any(isinstance(x, ast.Starred) for x in call.args):
            given = call.args[position]
        if given is not None and not _is_none(program, given, located[1]):
            yield declining.decline(
                declining.GRADIENTS_OUTSIDE,
                module,
                call,
                f"`max_norm={module.text(given)}` shortens the rows that a process looks up, in its own copy of the "
                "table: the copies come apart",
                "shorten all rows on all processes after each step instead: "
                "`with torch.no_grad(): table.weight.renorm_(2, 0, max_norm)`",
            )


def _is_none(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Whether an argument is None, or a parameter for which all callers give that."""
    if literal(node) is None:
        return True
    info = program.function_of(scope.node)
    if info is None or not isinstance(node, ast.Name) or node.id not in info.parameters or depth >= _MAX_CALLS:
        return False
    given = [(info.argument_or_default(caller.call, node.id), caller.scope) for caller in program.flow.callers(info)]
    return bool(given) and all(
        value is not None and _is_none(program, value, where, depth + 1) for value, where in given
    )


def _run_by_forward(program: Program) -> list[ast.AST]:
    """Bodies that each forward pass of a trained model runs, other than to make something once and keep it."""
    pending: list[ast.AST] = []
    for value in sorted(program.with_parts(program.trained), key=made_at):
        method = value.ref.find_method("forward") if value.kind == "instance" else None
        if method is not None:
            pending.append(method.node)
    found: dict[ast.AST, None] = {}
    while pending:
        body = pending.pop()
        if body in found or body not in program.flow.scopes:
            continue
        found[body] = None
        scope = program.flow.scopes[body]
        for node in program.nodes_of(body):
            if isinstance(node, ast.Call) and not _is_kept_once(scope.module, node):
                called = program.flow.callees(node)
                pending += [info.node for info in called if not _is_made_before(program, node, scope, info)]
    return sorted(found, key=lambda body: (str(program.flow.scopes[body].module.path), getattr(body, "lineno", 0)))


def _is_made_before(program: Program, call: ast.Call, scope: Scope, info: FunctionFacts) -> bool:
    """Whether the call makes nothing: what it calls held a class until its object was made, ``self.down = down()``."""
    owner = program.flow.class_of(info)
    return (
        owner is not None
        and info.name == "__init__"
        and any(
            value.kind == "instance" and owner in value.ref.mro() for value in program.flow.values(call.func, scope)
        )
    )


def _is_kept_once(module: Module, node: ast.AST) -> bool:
    """Whether something is made under a condition and kept by an object: ``if self.fc is None: self.fc = ...``."""
    statement = node if isinstance(node, ast.stmt) else blocks.statement_of(module, node)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr)):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    keeps = isinstance(statement, ast.Expr) or any(isinstance(item, (ast.Attribute, ast.Subscript)) for item in targets)
    return keeps and any(isinstance(item, (ast.If, ast.Try)) for item in blocks.enclosing(module, statement))


def _is_own(node: ast.Assign) -> bool:
    """Whether an object's own attribute is assigned, ``self.weight``, which may have been None; not one of a layer."""
    return all((blocks.path_of(target) or "").count(".") <= 1 for target in node.targets)


def _draws_weights(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a layer with drawn weights is made that are not written over there."""
    if not program.callee_names(call, scope) & DRAWING_THEIR_WEIGHTS:
        return False
    statement = blocks.statement_of(scope.module, call)
    name = blocks.path_of(statement.targets[0]) if isinstance(statement, ast.Assign) else None
    body = blocks.body_of(scope.module, statement)
    return name is None or not any(_writes_over(item, name) for item in blocks.own_parts(body))


def _writes_over(node: ast.AST, name: str) -> bool:
    """Whether a node gives a layer weights that are not made of those it has: a filter that is computed, constants."""
    if isinstance(node, ast.Assign):
        paths = [blocks.path_of(target) or "" for target in node.targets]
        if not any(path.startswith(f"{name}.") for path in paths):
            return False
        return not any(path.startswith(f"{name}.") for path in blocks.reads(node.value))
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if called in ("load_state_dict", "copy_", "fill_", "zero_"):
        return (blocks.path_of(node.func) or "").startswith(f"{name}.")
    return called in ("constant_", "zeros_", "ones_", "eye_") and any(
        (blocks.path_of(item) or "").startswith(f"{name}.") for item in walk(node) if isinstance(item, ast.Attribute)
    )
