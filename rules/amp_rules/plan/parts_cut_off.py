"""Parts of a model of whose results a forward pass takes the values alone: ``self.teacher(x).detach()``.

No gradient comes to their parameters in any step, and the plain wrapper would wait for it.
"""

from __future__ import annotations

import ast

from amp_rules.plan.model_parts import surely_has_parameters
from amp_rules.plan.outputs_in_loss import at
from amp_rules.plan.parts_of_networks import freezes_all, is_off
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.syntax import walk

_CUTS = frozenset({"detach", "data", "argmax", "argmin", "item", "long", "tolist", "numpy"})
"""What gives the values of a tensor, or numbers made of them, through which no gradient goes back."""


def why_cut_off(program: Program, info: FunctionFacts, site: Site) -> str:
    """Which part a method takes the values alone of, for the report; empty where it does of none."""
    for call in program.nodes_of(info.node):
        if not isinstance(call, ast.Call):
            continue
        path = blocks.path_of(call.func)
        if path is None or not path.startswith(f"{info.receiver}.") or not (cut := _cut(program, call, info, site)):
            continue
        if program.without_gradients(site.module, call, info.node):
            continue
        called = program.called_models(call, site.scope)
        if not called or not all(surely_has_parameters(program, value) for value in called):
            continue
        if not _is_called_elsewhere(program, call, path, info) and not _is_frozen(program, path.rpartition(".")[2]):
            outer = site.module.parents[cut]
            shown = outer if isinstance(outer, ast.Call) and outer.func is cut else cut
            return f"{at(program, site.module, shown)} cuts off the gradients of a part"
    return ""


def _cut(program: Program, call: ast.Call, info: FunctionFacts, site: Site) -> ast.AST | None:
    """Where the values of a result are taken, if they are in all places that read it."""
    taken = blocks.around_reads(site.module, call, program.nodes_of(info.node))
    return taken[0] if taken and all(map(_takes_values, taken)) else None


def _takes_values(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in _CUTS


def _is_called_elsewhere(program: Program, call: ast.Call, path: str, info: FunctionFacts) -> bool:
    """Whether a method of the class runs the part once more, or another name may."""
    owner = program.flow.class_of(info)
    name = path.split(".")[1]
    own = set(walk(call.func))
    methods = [one for item in owner.mro() for one in item.facts.methods.values()] if owner is not None else [info]
    return any(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load) and node not in own
        for one in methods
        if one.name != "__init__"
        for node in walk(one.node)
    )


def _is_frozen(program: Program, name: str) -> bool:
    """Whether something keeps the parameters of a part of this name from being trained."""
    for node, scope in program.reads_named(name):
        parents = scope.module.parents
        parent = parents[node]
        if not isinstance(node, ast.Attribute) or not isinstance(parent, ast.Attribute):
            continue
        if parent.attr == "requires_grad_" and is_off(parents[parent]):
            return True
        if parent.attr == "parameters" and freezes_all(scope.module, parent):
            return True
    return False
