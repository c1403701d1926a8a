"""Which variables hold what was made on the spot, and whose object an expression may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.evaluation.assignments import names_in, targets_of

_GIVES_ITSELF = frozenset(
    {"get", "items", "values", "view", "detach", "cpu", "to", "cuda", "contiguous", "requires_grad_"}
)
"""Methods that may give what they are asked of, or a part of it."""

_GIVES_PARTS = frozenset({"getattr", "iter", "enumerate", "zip", "reversed", "next"})


def made_in(nodes: list[ast.AST], given: set[str]) -> set[str]:
    """The variables that nodes assign nothing but what they make, or parts of it; ``given`` is made already."""
    values: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for part, value in _pairs(target, node.value):
                    values.setdefault(part, []).append(value)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            for part in names_in(node.target) - given:
                values.setdefault(part, []).append(node.iter)
    fresh = given | set(values)
    while True:
        aliases = {
            name
            for name, assigned in values.items()
            if name in fresh and any((root := root_of(value)) is not None and root not in fresh for value in assigned)
        }
        if not aliases:
            return fresh
        fresh -= aliases


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        if len(target.elts) == len(value.elts):
            for one, other in zip(target.elts, value.elts, strict=True):
                yield from _pairs(one, other)
            return
    for part in targets_of(target):
        if isinstance(part, ast.Name):
            yield part.id, value


def root_of(node: ast.AST) -> str | None:
    """The variable whose object, or a part of it, an expression may be; None where it makes something anew."""
    while True:
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr not in _GIVES_ITSELF:
                return None
            node = node.func.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _GIVES_PARTS:
            if not node.args:
                return None
            node = node.args[0]
        elif isinstance(node, (ast.IfExp, ast.BoolOp)):
            parts = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
            return next((root for part in parts if (root := root_of(part)) is not None), None)
        else:
            return node.id if isinstance(node, ast.Name) else None
