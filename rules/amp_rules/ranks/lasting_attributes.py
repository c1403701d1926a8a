"""Attributes that a method gives its object and reads again itself: they hold what it gave them last.

``self.features = self.encoder(x)`` and ``self.head(self.features)`` in a forward pass: what the pass before has left is
of no account. It holds where no other function than the constructor assigns the attribute, of whatever object.
"""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.ranks.frames import Frame
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.index import argument_at, literal
from amp_rules.source.syntax import called_name

_BY_NAME = frozenset({"setattr", "__setattr__"})
"""Calls that assign an attribute whose name they are given."""
_NAME = 1
"""The place of the name among the arguments of ``setattr``."""


class LastingAttributes:
    """Finds the attributes of the object of which a frame runs a method that hold what the frame gave them."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def path(self, node: ast.Attribute, frame: Frame) -> str | None:
        """The name under which a frame knows such an attribute; none where something else may assign it meanwhile."""
        info = self._program.flow.functions.get(frame.node)
        if info is None or info.receiver is None or not isinstance(node.value, ast.Name):
            return None
        if node.value.id != info.receiver or self._assigned.get(node.attr) is not frame.node:
            return None
        return f"{info.receiver}.{node.attr}"

    @cached_property
    def _assigned(self) -> dict[str, ast.AST | None]:
        """The function that assigns an attribute, beside constructors; none where there are several.

        Nothing where the program assigns attributes whose names are not known.
        """
        found: dict[str, ast.AST | None] = {}
        for call, _, _ in self._program.calls():
            if called_name(call) in _BY_NAME:
                name = literal(argument_at(call, "name", _NAME))
                if not isinstance(name, str):
                    return {}
                found[name] = None
        for node, body, _ in self._program.nodes():
            if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
                continue
            info = self._program.flow.functions.get(body)
            is_own = info is not None and blocks.path_of(node.value) == info.receiver
            if is_own and getattr(body, "name", "") == "__init__":
                continue
            found[node.attr] = body if found.get(node.attr, body) is body else None
        return found
