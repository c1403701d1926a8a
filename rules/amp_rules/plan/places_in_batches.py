"""Losses whose labels are the places of the samples in their batch: each sample is told from all others of it."""

from __future__ import annotations

import ast

from amp_rules.plan.definitions import Definitions
from amp_rules.plan.summed_terms import is_of_batch
from amp_rules.ranks.analysis import Ranks
from amp_rules.roles.program import Program
from amp_rules.source.index import argument_at, literal
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import called_name, own_name, walk
from amp_rules.torch.losses import CHOOSE_A_CLASS


def is_given_places(program: Program, definitions: Definitions, node: ast.expr, scope: Scope, ranks: Ranks) -> bool:
    """``F.cross_entropy(scores, torch.arange(len(x)))``: each sample is told from the others of its batch.

    Where the scores are computed, in a model perhaps, does not matter.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
        return False
    modules = {value.name for value in program.flow.values(node.func, scope) if value.kind == "object"}
    if not (program.callee_names(node, scope) | modules) & CHOOSE_A_CLASS:
        return False
    target = argument_at(node, "target", 1)
    given = [item.value for item in definitions.of(target, scope)] if isinstance(target, ast.Name) else [target]
    return any(
        isinstance(part, ast.Call)
        and called_name(part) == "arange"
        and len(part.args) == 1
        and any(is_of_batch(of, ranks) for of in _measured(definitions, part.args[0], scope))
        for item in given
        if item is not None
        for part in walk(item)
    )


def _measured(definitions: Definitions, node: ast.expr, scope: Scope) -> list[ast.expr]:
    """What the length of is asked for: ``x`` of ``len(x)``, ``x.size(0)``, ``x.shape[0]``, of a variable's, too."""
    values = [item.value for item in definitions.of(node, scope)] if isinstance(node, ast.Name) else [node]
    found = []
    for value in values:
        if isinstance(value, ast.Call) and own_name(value.func) == "len" and len(value.args) == 1:
            found.append(value.args[0])
        elif isinstance(value, ast.Call) and called_name(value) == "size" and isinstance(value.func, ast.Attribute):
            found += [value.func.value] if [literal(item) for item in value.args] == [0] else []
        elif isinstance(value, ast.Subscript) and isinstance(value.value, ast.Attribute):
            found += [value.value.value] if value.value.attr == "shape" and literal(value.slice) == 0 else []
    return found
