"""Processes of which each sees a GPU of its own alone, by what the script puts into the environment."""

from __future__ import annotations

import ast

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import is_environment
from amp_rules.roles.path_objects import assigned
from amp_rules.source.index import literal
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_MAX_NAMES = 3
"""Variables between what is put there and the rank."""


def sees_its_own_gpu(own: OwnDdp) -> bool:
    """Whether a script tells CUDA, by the rank, which GPU there is: ``environ["CUDA_VISIBLE_DEVICES"] = str(rank)``."""
    for node, body, scope in own.program.nodes():
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Subscript) and literal(target.slice) == _VARIABLE and body not in own.uncalled:
            assert isinstance(node, ast.Assign)
            if is_environment(own.program, target.value, scope) and _is_by_rank(own, node.value, scope, _MAX_NAMES):
                return True
    return False


def _is_by_rank(own: OwnDdp, node: ast.expr, scope: Scope, depth: int) -> bool:
    """Whether an expression is made of the rank, and of nothing that would be several GPUs."""
    if any(isinstance(part, (ast.List, ast.Tuple)) for part in walk(node)):
        return False
    if names_rank(node):
        return True
    names = [part for part in walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)]
    return depth > 0 and any(
        _is_by_rank(own, value, scope, depth - 1) for name in names for value in assigned(own.program, name, scope)
    )
