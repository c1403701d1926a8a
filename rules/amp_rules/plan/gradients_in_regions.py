"""Calls of ``torch.autograd.grad`` that run within a region, though what they differentiate was computed elsewhere.

Autocast holds for the products of a backward pass, too, where that runs in a region: a product of a vector with a
Hessian, ``torch.autograd.grad(f, x, v)``, would be half though ``f`` is not.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from amp_rules.roles.in_regions import bodies_in, nodes_in
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.statement_runs import StatementRun

_HELD_BY_A_BLOCK = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)


def alone(
    program: Program, regions: Sequence[StatementRun], full_precision: Sequence[StatementRun]
) -> list[StatementRun]:
    """The statements of such calls that no run in full precision holds."""
    if not any("autograd" in module.source.text for module in program.flow.modules):
        return []
    held = bodies_in(program, full_precision)
    found: dict[ast.stmt, StatementRun] = {}
    for site in nodes_in(program, regions, full_precision):
        if site.body in held or isinstance(site.body, ast.Lambda) or not _differentiates(program, site):
            continue
        if isinstance(site.statement, _HELD_BY_A_BLOCK):
            found.setdefault(site.statement, StatementRun(site.module, site.statement, site.statement))
    return list(found.values())


def _differentiates(program: Program, site: Site) -> bool:
    node = site.node
    return isinstance(node, ast.Call) and "torch.autograd.grad" in program.callee_names(node, site.scope)
