"""Derivatives on a grid: differences of neighbours that are divided by a step, as those of a differential equation.

What half rounds off is divided by the step, or by its square, as well: of 5e-4 a step of 0.01 makes 5 in a second
derivative. Differences that nothing divides, as those of a total variation, keep enough digits.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from amp_rules.plan.fixed_tables import signs_of
from amp_rules.plan.numbers import Numbers
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.index import argument_at, literal
from amp_rules.source.syntax import walk
from amp_rules.torch.functions import CONVOLUTIONS

_SMALL = 0.5
"""A step is smaller: what is divided by more has its digits still."""


def differentiated(program: Program, site: Site) -> ast.expr | None:
    """The tensor on a grid of which an expression is a derivative; None for other expressions."""
    node = site.node
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
        return None
    base = _neighbours(program, node.left, site) or _through_stencil(program, node.left, site)
    return base if base is not None and _is_step(program, node.right, site) else None


def _is_step(program: Program, node: ast.expr, site: Site) -> bool:
    """Whether a divisor may be a small number, and is no tensor that is computed here."""
    if any(isinstance(part, ast.Call) for part in walk(node)):
        return False
    found = Numbers(program).of(node, site.scope)
    return not found or all(0 < abs(item) < _SMALL for item in found if not math.isnan(item))


def _neighbours(program: Program, node: ast.expr, site: Site) -> ast.expr | None:
    """``u`` of ``u[2:] - 2 * u[1:-1] + u[:-2]`` and of ``torch.roll(u, 1, 0) - u``."""
    terms = list(_terms(node))
    if not isinstance(node, ast.BinOp) or len(terms) < 2:
        return None
    moved = [(item, _moved(program, item, site)) for item in terms]
    bases = {ast.dump(base): base for _, base in moved if base is not None}
    if len(bases) != 1:
        return None
    (text, base), *_ = bases.items()
    if not all(where is not None or ast.dump(item) == text for item, where in moved):
        return None
    shifts = {ast.dump(item) for item, _ in moved}
    return base if len(shifts) == len(moved) and any(_is_shift(program, item, site) for item in terms) else None


def _terms(node: ast.expr) -> Iterator[ast.expr]:
    """The terms of a sum, without the numbers that they are multiplied by."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield from _terms(node.left)
        yield from _terms(node.right)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and _is_number(node.left):
        yield from _terms(node.right)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and _is_number(node.right):
        yield from _terms(node.left)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield from _terms(node.operand)
    else:
        yield node


def _is_number(node: ast.expr) -> bool:
    return isinstance(literal(node), (int, float))


def _moved(program: Program, node: ast.expr, site: Site) -> ast.expr | None:
    """What a slice or a rotation of elements is taken of."""
    if isinstance(node, ast.Subscript):
        return node.value if any(isinstance(item, ast.Slice) for item in _axes(node)) else None
    if isinstance(node, ast.Call):
        if program.callee_names(node, site.scope) & {"torch.roll"}:
            return argument_at(node, "input", 0)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "roll" and not program.flow.callees(node):
            return node.func.value
    return None


def _is_shift(program: Program, node: ast.expr, site: Site) -> bool:
    """Whether elements move by a few places: ``u[:-2]``, and not ``boxes[:, :2]``."""
    if isinstance(node, ast.Call):
        return _moved(program, node, site) is not None
    if not isinstance(node, ast.Subscript):
        return False
    ends = [item.upper for item in _axes(node) if isinstance(item, ast.Slice)]
    return any(isinstance(end, ast.UnaryOp) and isinstance(end.op, ast.USub) for end in ends)


def _axes(node: ast.Subscript) -> list[ast.expr]:
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def _through_stencil(program: Program, node: ast.expr, site: Site) -> ast.expr | None:
    """``u`` of ``F.conv2d(u, laplacian)``, where the coefficients are fixed, and of both signs."""
    if not (isinstance(node, ast.Call) and program.callee_names(node, site.scope) & CONVOLUTIONS):
        return None
    given, weight = argument_at(node, "input", 0), argument_at(node, "weight", 1)
    if weight is None or not signs_of(program, weight, site.scope, site.body) >= {-1, 1}:
        return None
    return given
