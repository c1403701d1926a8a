"""Why nothing is quantized, and what is to be known where something is."""

from __future__ import annotations

import ast
from dataclasses import dataclass

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

    @property
    def told(self) -> str:
        """The reason and the recipe."""
        return f"{self.text}; {self.recipe}" if self.recipe else self.text


class Apart(NotQuantized):
    """The training does not end where it was looked for."""


@dataclass(frozen=True)
class Remark:
    """What the reader of a script with an int8 model has to know, and where.

    Attributes:
        module: the file.
        node: the place; None where it is about a whole file.
        text: the sentence.
    """

    module: Module
    node: ast.AST | None
    text: str
