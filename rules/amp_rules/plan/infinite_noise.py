"""Noise whose logarithm is taken, or by which is divided: in half it is 0 now and then, and the result infinite."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from amp_rules.lattice.operation_names import VIEWS
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import last_name
from amp_rules.torch.accumulation import (
    DRAWING,
    DRAWN_LIKE_ANOTHER,
    DRAWN_OF_A_TYPE,
    INFINITE_AT_ZERO,
    KEEPS_ZERO,
)

Parents = Mapping[ast.AST, ast.AST]

_EPSILON = 1e-3
"""More than this is added for its own sake, and not to guard against zero."""


def is_infinite_at_zero(program: Program, site: Site) -> bool:
    """Whether a tensor is noise of which a logarithm or the like is taken: at once, or under the name that it gets."""
    drawn = _noise(program, site)
    if drawn is None:
        return False
    parents = site.module.parents
    if _is_in_logarithm(parents, drawn):
        return True
    names = {
        path
        for target, value in blocks.pairs_of(blocks.statement_of(site.module, drawn))
        if _is_made_of(parents, value, drawn)
        and (path := blocks.path_of(target)) not in blocks.reads(value)  # noise is added to an activation
    }
    return any(
        isinstance(node, ast.Name) and node.id in names and _is_in_logarithm(parents, node)
        for node in blocks.walk_body(site.body)
    )


def _noise(program: Program, site: Site) -> ast.Call | None:
    """``torch.rand_like(x)``, and ``torch.empty_like(x).uniform_()`` for the tensor that is filled."""
    assert isinstance(site.node, ast.Call)
    if program.callee_names(site.node, site.scope) & (DRAWN_LIKE_ANOTHER | DRAWN_OF_A_TYPE):
        return site.node
    method = site.module.parents.get(site.node)
    call = site.module.parents.get(method) if isinstance(method, ast.Attribute) and method.attr in DRAWING else None
    return call if isinstance(call, ast.Call) else None


def _above(parents: Parents, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The arithmetic around a number, from within, each time with the part that it stands in."""
    while True:
        above = parents.get(node)
        if isinstance(above, ast.Attribute):
            call = parents.get(above)
            above = call if isinstance(call, ast.Call) and call.func is above else None
        if isinstance(above, ast.Call):
            name = last_name(above.func)
            if name not in INFINITE_AT_ZERO | KEEPS_ZERO | VIEWS:
                return
        elif not isinstance(above, (ast.BinOp, ast.UnaryOp)) or _is_kept_from_zero(above):
            return
        yield above, node
        node = above


def _is_kept_from_zero(node: ast.AST) -> bool:
    """``u + 1``, whose logarithm is finite."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
        return False
    numbers = [item.value for item in (node.left, node.right) if isinstance(item, ast.Constant)]
    return any(isinstance(number, (int, float)) and number > _EPSILON for number in numbers)


def _is_in_logarithm(parents: Parents, node: ast.AST) -> bool:
    return any(
        (isinstance(above, ast.Call) and last_name(above.func) in INFINITE_AT_ZERO)
        or (isinstance(above, ast.BinOp) and isinstance(above.op, ast.Div) and above.right is part)
        for above, part in _above(parents, node)
    )


def _is_made_of(parents: Parents, value: ast.expr, node: ast.AST) -> bool:
    return value is node or any(above is value for above, _ in _above(parents, node))
