"""Why nothing is quantized."""

from __future__ import annotations

import ast

from amp_rules.source.modules import Module


class NotQuantized(Exception):
    """The reason, for the reader, and where.

    Attributes:
        module: the file.
        node: the place; None where it is about a whole file.
        text: what is not understood, or stands in the way.
        recipe: what to do by hand; empty where the reason says it.
    """

    def __init__(self, module: Module, node: ast.AST | None, text: str, recipe: str = "") -> None:
        super().__init__(text)
        self.module = module
        self.node = node
        self.text = text
        self.recipe = recipe
