"""Masks that are made like the scores which they are added to, and written into: ``mask = torch.zeros_like(scores)``.

Scores that come of a product of matrices are floats, and half under autocast, whatever they are divided by: the
analysis of types does not know that of ``scores / self.size**0.5``, where the attribute may be a tensor.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from amp_rules.checks.common.mixed_types import MATRIX_PRODUCTS
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.scopes import Scope
from amp_rules.torch.old_torch import LIKE, NEW

_Test = Callable[[Program, ast.expr, Scope, str], bool]
_MOVES = frozenset({"to", "cuda", "cpu", "clone", "contiguous", "detach"})


def masks_of_scores(program: Program, sites: Iterable[Site]) -> Iterator[tuple[Site, ast.Name]]:
    """Yield the numbers that such places write by an index, each with the mask.

    Args:
        program: the program.
        sites: the nodes that run under autocast.
    """
    for site in sites:
        node = site.node
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript)):
            continue
        mask = node.targets[0].value
        if isinstance(mask, ast.Name) and _all_are(program, mask, site.scope, _is_like_scores):
            yield Site(site.module, site.scope, site.body, node.value), mask


def _is_like_scores(program: Program, node: ast.expr, scope: Scope, _name: str) -> bool:
    """``torch.zeros_like(scores).to(device)`` or ``scores.new_zeros(...)``, with the type of the scores."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MOVES:
        if any(_may_name_type(program, item, scope) for item in (*node.args, *(word.value for word in node.keywords))):
            return False
        node = node.func.value
    if not isinstance(node, ast.Call) or any(item.arg in (None, "dtype") for item in node.keywords):
        return False
    if program.callee_names(node, scope) & {f"torch.{name}" for name in LIKE} and node.args:
        scores = node.args[0]
    elif isinstance(node.func, ast.Attribute) and node.func.attr in NEW and not program.flow.callees(node):
        scores = node.func.value
    else:
        return False
    if isinstance(scores, ast.Name):
        return _all_are(program, scores, scope, _is_product)
    return _is_product(program, scores, scope, "")


def _is_product(program: Program, node: ast.expr, scope: Scope, name: str) -> bool:
    """A product of matrices, with numbers or other tensors beside it: ``q @ k.transpose(-2, -1) / scale``.

    What goes on with the same name, ``scores = scores / scale``, is what it was.
    """
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.MatMult):
            return True
        return any(_is_product(program, item, scope, name) for item in (node.left, node.right))
    if isinstance(node, ast.Call):
        if program.callee_names(node, scope) & {f"torch.{item}" for item in MATRIX_PRODUCTS}:
            return True
        return isinstance(node.func, ast.Attribute) and node.func.attr in MATRIX_PRODUCTS - {"einsum"}
    return isinstance(node, ast.Name) and node.id == name


def _all_are(program: Program, node: ast.Name, scope: Scope, test: _Test) -> bool:
    """Whether all that a variable of a function is given passes a test, and not only what goes on with itself."""
    owner = scope.owner(node.id)
    values: list[ast.expr] = []
    for item in program.nodes_of(owner.node):
        if isinstance(item, ast.Name) and item.id == node.id and isinstance(item.ctx, ast.Store):
            statement = owner.module.parents.get(item)
            if isinstance(statement, ast.AugAssign):
                continue
            if not isinstance(statement, ast.Assign):
                return False
            values.append(statement.value)
    own = [item for item in values if not (isinstance(item, ast.BinOp) and _goes_on(item, node.id))]
    return bool(own) and all(test(program, item, owner, node.id) for item in values)


def _goes_on(node: ast.BinOp, name: str) -> bool:
    return any(isinstance(item, ast.Name) and item.id == name for item in (node.left, node.right))


def _may_name_type(program: Program, node: ast.expr, scope: Scope) -> bool:
    """``torch.long``, ``x.dtype``; a device is no name of torch."""
    if isinstance(node, ast.Attribute) and node.attr == "dtype":
        return True
    return any(name.startswith("torch.") for name in program.names(node, scope))
