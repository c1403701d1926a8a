"""Optimizers of tensors that belong to no known model, and of copies: nothing would average their gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.given_models import ASKED
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.definitions import Definitions
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk

_SCOPES = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
"""What has variables of its own, of which a look from outside tells nothing."""
_MAX_FUNCTIONS = 2
"""Functions between an optimizer and what copies parameters for it. Beyond, only the runtime refuses it."""


def reasons(program: Program) -> Iterator[Declined]:
    """Yield each optimizer that is given such tensors, when it is made or later."""
    sites = [
        value.site
        for step in program.steps
        for value in sorted(program.flow.values(step.optimizer, step.scope), key=lambda item: str(item.ref))
    ]
    sites += [site.node for site in program.added_groups]
    definitions = Definitions(program)
    for call in dict.fromkeys(sites):
        if isinstance(call, ast.Call):
            located = program.locate(call)
            if located is None:
                continue
            yield from _of_unknown(program, definitions, call, located[1])
            if _is_of_copies(program, call, located[1]):
                yield declining.decline(
                    declining.GRADIENTS_OUTSIDE,
                    located[1].module,
                    call,
                    f"`{located[1].module.text(call.func)}` gets copies of a model's parameters, which belong to no "
                    "model: `amp.scaler.step` refuses them in several processes",
                    "give it the parameters themselves; O2 keeps FP32 master weights of a half model",
                )
            if not program.loose_parameters(call):
                continue
            yield declining.decline(
                declining.GRADIENTS_OUTSIDE,
                located[1].module,
                call,
                f"`{located[1].module.text(call.func)}` gets tensors that belong to no model: their gradients "
                "would differ on each rank",
                "make them parameters of a module, and pass that to `amp.prepare_model`",
            )


def _of_unknown(program: Program, definitions: Definitions, call: ast.Call, scope: Scope) -> Iterator[Declined]:
    """Yield each variable whose parameters the optimizer is given and of which nothing is known."""
    given = [*call.args, *(item.value for item in call.keywords)]
    given += [value for item in given for value in assigned(program, item, scope)]
    for node in [part for item in given for part in walk(item)]:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKED):
            continue
        if program.flow.values(node, scope) or any(isinstance(one, _SCOPES) for one in scope.module.ancestors(node)):
            continue
        if definitions.is_none(node.func.value, scope):
            continue
        owner = scope.module.text(node.func.value)
        yield declining.decline(
            declining.GRADIENTS_OUTSIDE,
            scope.module,
            node,
            f"`{owner}` is not known, and an optimizer trains its parameters: gradients would differ on each rank",
            f"write `{owner} = amp.prepare_model({owner})` where it is made",
        )


def _is_of_copies(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether an optimizer is given copies of parameters: FP32 master weights that a script makes by hand."""
    given = [*call.args[:1], *(item.value for item in call.keywords if item.arg == "params")]
    return any(_copies(program, value, where) for node in given for value, where in _elements(program, node, scope))


def _elements(
    program: Program, node: ast.expr, scope: Scope, depth: int = _MAX_FUNCTIONS
) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what the elements of a list are made of, also of one that a function gives."""
    for made in (node, *assigned(program, node, scope)):
        yield from ((value, scope) for value in _in_list(program, node, made, scope))
        if isinstance(made, ast.Call) and depth > 0:
            for info in program.flow.callees(made):
                for value in info.returns:
                    yield from _elements(program, value, program.flow.scopes[info.node], depth - 1)


def _in_list(program: Program, node: ast.expr, made: ast.expr, scope: Scope) -> Iterator[ast.expr]:
    """Yield what a list is made of, and what is appended to the variable that holds it."""
    if isinstance(made, (ast.ListComp, ast.GeneratorExp)):
        yield made.elt
    elif isinstance(made, ast.List):
        yield from made.elts
        path = blocks.path_of(node)
        for item in program.nodes_of(scope.node) if path is not None else ():
            if isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and item.func.attr == "append":
                if blocks.path_of(item.func.value) == path and len(item.args) == 1:
                    yield item.args[0]
                    yield from assigned(program, item.args[0], scope)


def _copies(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression copies a parameter: ``p.detach().clone()``, ``nn.Parameter(p.data.clone())``."""
    return any(
        isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr == "clone"
        and any(value.kind == "parameters" for value in program.flow.values(part.func.value, scope))
        for part in walk(node)
    )
