"""Where the search for a loop's loaders has been."""

from __future__ import annotations

import ast

Nearest = dict[tuple[ast.AST, object], int]
"""How near to a loop something was looked into, and by whom."""


class Way:
    """What lies between a loop and where the search for its loaders is; nothing lies there twice.

    Attributes:
        depth: how much that is.
    """

    def __init__(self, nodes: frozenset[ast.AST] = frozenset()) -> None:
        self._nodes = nodes
        self.depth = len(nodes)

    def has(self, node: ast.AST, by: object) -> bool:
        """Whether a node lies on the way; ``by`` names who looks into it."""
        return node in self._nodes

    def to(self, node: ast.AST, by: object) -> Way:
        """The way on, into a node."""
        return Way(self._nodes | {node})


class AllWays(Way):
    """Stands for all ways of one search: what was looked into as near to the loop before is not looked into again.

    There can be as many ways as products of assignments: ``keys = [rename(key) for key in keys]`` twenty times over.
    What no search of this kind finds, no single way leads to.
    """

    def __init__(self, empty: Nearest, nearest: Nearest | None = None, depth: int = 0) -> None:
        """Begin a search.

        Args:
            empty: what searches that found nothing have looked into.
            nearest: what this one has looked into.
            depth: how far it is from the loop.
        """
        self._empty = empty
        self._nearest = {} if nearest is None else nearest
        self.depth = depth

    def has(self, node: ast.AST, by: object) -> bool:
        """Whether the same was looked into by the same, as near or nearer."""
        key, further = (node, by), self.depth + 1
        return self._nearest.get(key, further) <= self.depth or self._empty.get(key, further) <= self.depth

    def to(self, node: ast.AST, by: object) -> Way:
        """One further, from here on."""
        self._nearest[node, by] = self.depth
        return AllWays(self._empty, self._nearest, self.depth + 1)

    def found_nothing(self) -> None:
        """Have later searches leave out what this one has looked into."""
        for key, depth in self._nearest.items():
            self._empty[key] = min(depth, self._empty.get(key, depth))
