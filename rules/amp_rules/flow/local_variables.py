"""What the variables of a function are assigned from."""

from __future__ import annotations

import ast

from amp_rules.source import blocks

_WRITERS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.AsyncFor, ast.With, ast.AsyncWith)


class LocalVariables(dict[ast.AST, dict[str, list[ast.expr]]]):
    """By function: the expressions that each variable is assigned from; empty for variables of another kind."""

    def __missing__(self, body: ast.AST) -> dict[str, list[ast.expr]]:
        found = self[body] = definitions(body)
        return found


def definitions(body: ast.AST) -> dict[str, list[ast.expr]]:
    """Map the variables of a function to what plain assignments give them; others map to an empty list."""
    found: dict[str, list[ast.expr]] = {}
    other: set[str] = set()
    for node in blocks.walk_body(body):
        if isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets):
            for target in node.targets:
                found.setdefault(target.id, []).append(node.value)  # type: ignore[attr-defined]
            continue
        for name in blocks.writes(node) if isinstance(node, _WRITERS) else ():
            other.add(name)
    return {name: [] if name in other else values for name, values in found.items()}
