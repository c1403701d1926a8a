"""Optimizers of tensors that belong to no known model: nothing would average their gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.given_models import ASKED
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.definitions import Definitions
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk

_SCOPES = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
"""What has variables of its own, of which a look from outside tells nothing."""


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
