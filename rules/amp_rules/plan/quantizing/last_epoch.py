"""Models that a script keeps on a condition, as its best, and does not go back to when it has trained."""

from __future__ import annotations

import ast

from amp_rules.flow.values import Value
from amp_rules.plan.quantizing.places import Place
from amp_rules.plan.quantizing.why_not import Remark
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk


def saved(program: Program, models: set[Value]) -> list[Site]:
    """Where ``torch.save`` writes the model, or what it gives."""
    return [
        site
        for site in program.calls_to(frozenset({"torch.save"}))
        if isinstance(site.node, ast.Call) and site.node.args and _holds(program, site.node.args[0], site.scope, models)
    ]


def kept_on_condition(program: Program, place: Place, models: set[Value]) -> list[Remark]:
    """Yield the checkpoint that may be another model than the last one, where no weights are loaded any more."""
    inside = program.called_from(walk(place.trained))
    for site in saved(program, models):
        within = site.body in inside or (site.body is place.body and site.node in set(walk(place.trained)))
        branch = next((item for item in blocks.enclosing(site.module, site.node) if isinstance(item, ast.If)), None)
        if within and branch is not None and branch is not place.trained:
            text = (
                "the int8 model is made of the model that the last epoch leaves; what is saved here, on a condition, "
                "may be another: to make it of that one, load it behind the training"
            )
            return [Remark(site.module, site.node, text)]
    return []


def _holds(program: Program, node: ast.expr, scope: Scope, models: set[Value]) -> bool:
    return any(
        bool(models & program.flow.values(part, scope))
        for part in walk(node)
        if isinstance(part, (ast.Name, ast.Attribute))
    )
