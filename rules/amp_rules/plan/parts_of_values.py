"""What a value is computed from in the body where it is."""

from __future__ import annotations

import ast

from amp_rules.source import blocks
from amp_rules.source.syntax import walk


def parts_made_of(body: ast.AST, value: ast.expr) -> list[ast.AST]:
    """The parts of a value, and of those that its variables are assigned in the body."""
    statements = [node for node in blocks.walk_body(body) if isinstance(node, (ast.Assign, ast.AugAssign))]
    names, values = set(blocks.reads(value)), [value]
    while True:
        more = [node for node in statements if node.value not in values and blocks.writes(node) & names]
        if not more:
            return [part for item in values for part in walk(item)]
        values += [node.value for node in more]
        names |= {name for node in more for name in blocks.reads(node.value)}
