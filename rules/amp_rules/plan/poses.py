"""Parts of poses and places beside a one, by which products move points: rotations, and homogeneous coordinates."""

from __future__ import annotations

import ast

from amp_rules.lattice.abstract_values import Value
from amp_rules.plan.made_of import SHAPING, is_of_weights
from amp_rules.source import blocks
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import literal
from amp_rules.source.syntax import walk

_SIZES = (2, 3)
_ONES = frozenset({"ones", "ones_like", "new_ones"})
_JOINING = SHAPING | {"getitem", "repeat", "result"}


def moves_points(first: Value, second: Value, module: ModuleFacts) -> bool:
    """Whether a product of two tensors turns or moves points: one is the turning part of a pose, or both say where.

    ``pose[..., :3] @ points`` beside ``pose[..., 3:]``, or ``torch.cat([points, ones], -1) @ matrix``.
    """
    if is_of_weights(first) or is_of_weights(second):
        return False
    if is_turning_part(first, module) or is_turning_part(second, module):
        return True
    # Features that are multiplied with each other may both have a one at their end.
    return is_homogeneous(first) != is_homogeneous(second)


def is_homogeneous(value: Value) -> bool:
    """``torch.cat([points, torch.ones_like(points[..., :1])], -1)``, which no layer made half."""
    whole = value.through(SHAPING | {"result"})
    if whole.op != "cat" or not whole.args or whole.low:
        return False
    parts = whole.args[0].args
    ones = [item.through(_JOINING).op in _ONES for item in parts]
    return len(parts) == 2 and ones == [False, True]


def is_turning_part(value: Value, module: ModuleFacts) -> bool:
    """``pose[..., :3]`` or ``pose[:3, :3]``, where the function takes the last column by itself, too."""
    whole = value.through(SHAPING | {"neg", "inverse", "inv"})
    node = whole.node
    if whole.op != "getitem" or not isinstance(node, ast.Subscript) or not module.holds(node):
        return False
    size = _columns(node)
    if size is None:
        return False
    base = ast.dump(node.value)
    return any(
        isinstance(other, ast.Subscript) and _takes_column(other, size) and ast.dump(other.value) == base
        for other in walk(blocks.body_of(module.module, node))
    )


def _columns(node: ast.Subscript) -> int | None:
    """How many first columns of its matrices an expression takes."""
    places = _places(node)
    taken = places[-1] if places else None
    if not isinstance(taken, ast.Slice) or taken.lower is not None or taken.step is not None:
        return None
    size = literal(taken.upper)
    before = places[-2]
    # Of ``rows[:, :3]`` the rows may be samples, and the columns features.
    is_matrix = len(places) > 2 or isinstance(before, ast.Constant) or ast.dump(before) == ast.dump(taken)
    return size if isinstance(size, int) and size in _SIZES and is_matrix else None


def _places(node: ast.Subscript) -> list[ast.expr]:
    """What an expression takes of each dimension, where it names several."""
    return node.slice.elts if isinstance(node.slice, ast.Tuple) and len(node.slice.elts) > 1 else []


def _takes_column(node: ast.Subscript, size: int) -> bool:
    """Whether an expression takes the column behind some: ``pose[..., 3:]``, ``pose[:3, 3]``, ``pose[..., -1]``."""
    places = _places(node)
    taken = places[-1] if places else None
    if isinstance(taken, ast.Slice):
        return literal(taken.lower) == size
    if isinstance(taken, ast.UnaryOp) and isinstance(taken.op, ast.USub):
        return literal(taken.operand) == 1
    return taken is not None and literal(taken) == size
