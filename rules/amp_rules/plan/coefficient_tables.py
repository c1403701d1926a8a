"""Convolutions and products of the training step with a fixed table of coefficients: averages, stencils, conversions.

Nobody trains such a table, and what it is for says which digits count. A script that converts the input to float32 for
it asks for these digits; and a table with coefficients of both signs takes differences of neighbours.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Literal

from amp_rules.plan.fixed_tables import signs_of
from amp_rules.plan.half_places import HalfPlaces
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.index import argument_at
from amp_rules.torch.dtypes import FLOAT32_TYPES
from amp_rules.torch.functions import CONVOLUTIONS

_PRODUCTS = frozenset({"torch.matmul", "torch.mm", "torch.nn.functional.linear"})
Why = Literal["asked", "stencil"]


def in_tables(program: Program, places: HalfPlaces) -> Iterator[tuple[Site, Why]]:
    """Yield the calls and products that need FP32, each with the reason, by file and line."""
    for site in places.sites:
        operands = _operands(program, site)
        if operands is None:
            continue
        given, weight = operands
        if _is_converted(program, given, site):
            if signs_of(program, weight, site.scope, site.body):
                yield site, "asked"
        elif isinstance(site.node, ast.Call) and program.callee_names(site.node, site.scope) & CONVOLUTIONS:
            if signs_of(program, weight, site.scope, site.body) >= {-1, 1}:
                yield site, "stencil"


def _operands(program: Program, site: Site) -> tuple[ast.expr, ast.expr] | None:
    """The input and the weight of a convolution or product."""
    node = site.node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if not isinstance(node, ast.Call) or not program.callee_names(node, site.scope) & (CONVOLUTIONS | _PRODUCTS):
        return None
    one, other = argument_at(node, "input", 0), argument_at(node, "weight", 1)
    return (one, other) if one is not None and other is not None else None


def _is_converted(program: Program, node: ast.expr, site: Site) -> bool:
    """``x.float()``, where it is given."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    if node.func.attr == "float":
        return not node.args
    if node.func.attr != "to" or len(node.args) + len(node.keywords) != 1:
        return False
    kind = node.args[0] if node.args else node.keywords[0].value
    return isinstance(kind, ast.Attribute) and bool(program.names(kind, site.scope) & FLOAT32_TYPES)
