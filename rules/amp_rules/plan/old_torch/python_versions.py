"""Branches that only an older Python takes, by tests of `sys.version_info`."""

from __future__ import annotations

import ast

from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import ORDERS, own_name

_CURRENT = tuple((3, minor) for minor in range(10, 16))
"""Versions of Python that a current PyTorch runs with, and more to come."""
_PART = {"major": 0, "minor": 1}


def is_for_an_older_python(module: Module, node: ast.AST) -> bool:
    """Whether a place stands in a branch that no current Python takes."""
    below = node
    for above in module.ancestors(node):
        if isinstance(above, (ast.If, ast.IfExp)) and below is not above.test:
            body = above.body if isinstance(above.body, list) else [above.body]
            outcomes = {_outcome(above.test, version) for version in _CURRENT}
            if outcomes == {below not in body}:
                return True
        below = above
    return False


def _outcome(test: ast.expr, version: tuple[int, int]) -> bool | None:
    """How a test comes out for a version of Python; None for any other test."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _outcome(test.operand, version)
        return None if inner is None else not inner
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    left, right = _version(test.left, version), _constant(test.comparators[0])
    compare = ORDERS.get(type(test.ops[0]))
    if compare is None or left is None or type(left) is not type(right):
        return None
    return bool(compare(left, right))


def _version(node: ast.expr, version: tuple[int, int]) -> object:
    """What an expression of `sys.version_info` is for a version, as far as two numbers tell; None for any other."""
    if own_name(node) == "version_info":
        return version
    if isinstance(node, ast.Attribute) and node.attr in _PART and own_name(node.value) == "version_info":
        return version[_PART[node.attr]]
    if not isinstance(node, ast.Subscript) or own_name(node.value) != "version_info":
        return None
    if isinstance(node.slice, ast.Slice):
        upper = literal(node.slice.upper)
        return version[:upper] if node.slice.lower is None and isinstance(upper, int) and 0 < upper <= 2 else None
    place = literal(node.slice)
    return version[place] if isinstance(place, int) and 0 <= place < 2 else None


def _constant(node: ast.expr) -> object:
    if isinstance(node, ast.Tuple) and all(isinstance(literal(item), int) for item in node.elts):
        return tuple(literal(item) for item in node.elts)
    value = literal(node)
    return value if type(value) is int else None
