"""Paths that part right behind one variable: ``join(self.folder, "checkpoints")``, ``join(self.folder, "images")``."""

from __future__ import annotations

import ast

from amp_rules.roles.file_paths import Paths
from amp_rules.roles.program import Program
from amp_rules.source.index import literal
from amp_rules.source.scopes import Scope

_DEPTH = 4
"""Variables behind variables; a path that takes more is not followed to its end."""


class PathBranches:
    """Questions about what stands behind the variable that a path begins with."""

    def __init__(self, program: Program, paths: Paths) -> None:
        self._program = program
        self._paths = paths
        # Each read is held beside each change.
        self._known: dict[tuple[ast.expr, Scope], tuple[object, str] | None] = {}

    def are_apart(self, one: ast.expr, scope: Scope, other: ast.expr, other_scope: Scope) -> bool:
        """Whether two paths lie in different folders of one that a variable names, which is assigned once."""
        first, second = self._of(one, scope), self._of(other, other_scope)
        if first is None or second is None or first[0] != second[0]:
            return False
        # Who writes may put an ending behind the name that it is given.
        return not first[1].startswith(second[1]) and not second[1].startswith(first[1])

    def _of(self, path: ast.expr, scope: Scope) -> tuple[object, str] | None:
        key = path, scope
        if key not in self._known:
            self._known[key] = self._branch(path, scope, _DEPTH)
        return self._known[key]

    def _branch(self, node: ast.expr, scope: Scope, depth: int) -> tuple[object, str] | None:
        """The variable that a path begins with, and the name behind it."""
        if not depth:
            return None
        parts = self._parts(node, scope)
        if parts is None:
            assigned = self._assigned_once(node, scope)
            return self._branch(*assigned, depth - 1) if assigned is not None else None
        head, name = parts
        inner = self._branch(head, scope, depth - 1)
        if inner is not None:
            return inner
        key = self._program.flow.key(head, scope)
        if key is None or self._assigned_once(head, scope) is None:
            return None
        text = literal(name)
        if not isinstance(text, str) or text.startswith(("/", ".", "~")):
            return None
        begins = text.partition("/")[0]
        return (key, begins) if begins else None

    def _parts(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, ast.expr] | None:
        """What a path begins with, and what is joined to it."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return node.left, node.right
        if isinstance(node, ast.Call) and len(node.args) > 1:
            if "os.path.join" in self._program.callee_names(node, scope):
                return node.args[0], node.args[1]
        return None

    def _assigned_once(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, Scope] | None:
        found = self._paths.assigned(node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else []
        return found[0] if len(found) == 1 else None
