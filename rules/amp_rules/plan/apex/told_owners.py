"""Whose gradients a script says it looks at: ``amp.master_params(optimizer)`` here, ``model.parameters()`` there.

Where branches with Apex and without hand the two to the same function, the optimizer holds these parameters, whether
what the variables hold could be followed or not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.apex.references import References
from amp_rules.plan.apex.stages import uses_apex
from amp_rules.roles.bodies import ToldOwners, told_owner
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module

_MASTERS = "apex.amp.master_params"
_TAKING = frozenset({"apex.amp.initialize", "apex.amp.scale_loss"})


def told_owners(program: Program) -> ToldOwners:
    """The optimizers by what is said to be theirs; what is said of two is left out."""
    found: dict[tuple[object, ...], set[str]] = {}
    for module in uses_apex(program):
        references = References(module)
        for node in module.nodes:
            if isinstance(node, ast.If) and node.orelse:
                for parameters, optimizer in _pairs(module, references, node):
                    found.setdefault(told_owner(module, parameters), set()).add(ast.unparse(optimizer))
    return {key: names.pop() for key, names in found.items() if len(names) == 1}


def told_optimizers(program: Program) -> frozenset[tuple[object, ...]]:
    """What ``amp.initialize`` and ``amp.scale_loss`` are given as optimizers: Apex takes nothing else there."""
    found = set()
    for module in uses_apex(program):
        references = References(module)
        for node in module.nodes:
            if not isinstance(node, ast.Call) or references.target(node.func) not in _TAKING:
                continue
            named = [item.value for item in node.keywords if item.arg == "optimizers"]
            for given in (*node.args[1:2], *named):
                parts = given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given]
                found |= {told_owner(module, part) for part in parts if isinstance(part, (ast.Name, ast.Attribute))}
    return frozenset(found)


def _pairs(module: Module, references: References, branch: ast.If) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is handed to one function: parameters of a model in one branch, and of an optimizer in the other."""
    for one, other in ((branch.body, branch.orelse), (branch.orelse, branch.body)):
        masters = {
            ast.unparse(user.func): call.args[0]
            for call, user in _handed_on(module, one)
            if references.target(call.func) == _MASTERS and len(call.args) == 1
        }
        for call, user in _handed_on(module, other):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "parameters" and not call.args:
                optimizer = masters.get(ast.unparse(user.func))
                if optimizer is not None:
                    yield call, optimizer


def _handed_on(module: Module, suite: list[ast.stmt]) -> Iterator[tuple[ast.Call, ast.Call]]:
    """Calls that are the first argument of another."""
    for statement in suite:
        for node in blocks.walk_own(statement):
            parent = module.parents.get(node)
            if isinstance(node, ast.Call) and isinstance(parent, ast.Call) and parent.args[:1] == [node]:
                yield node, parent
