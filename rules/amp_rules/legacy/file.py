"""One file between two rewrites of older interfaces."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property

from amp_rules.context import free_name
from amp_rules.legacy.references import Names, References
from amp_rules.options import Options
from amp_rules.program.modules import Module
from amp_rules.tables import apex_api as api

RUNTIME = "amp_runtime"
STAND_IN = "_aM"  # as long as ``amp``: rows of arguments are aligned below it


class NotUnderstood(Exception):
    """Something of Apex that cannot be rewritten with certainty.

    Attributes:
        module: the file.
        node: the place.
        reason: what was not understood, for the reader.
        span: where that is in the file on disk.
    """

    def __init__(self, module: Module, node: ast.AST, reason: str) -> None:
        super().__init__(reason)
        self.module = module
        self.node = node
        self.reason = reason
        self.span = module.span(node)


@dataclass
class LegacyFile:
    """A file between two rewrites: its present text, and what names in it mean of Apex.

    Attributes:
        wanted_elsewhere: names that other files of the project import or read as attributes.
    """

    module: Module
    options: Options
    wanted_elsewhere: frozenset[str] = frozenset()

    @cached_property
    def references(self) -> References:
        """What names in this file mean of Apex."""
        return References(self.module)

    @cached_property
    def names(self) -> Names:
        """What names in this file mean of any package."""
        return Names(self.module)

    @property
    def amp(self) -> str:
        """A stand-in for the runtime's name, which is chosen when nothing of Apex is left; see :func:`finished`."""
        return STAND_IN

    def code(self, template: str) -> str:
        """The template with ``{amp}`` replaced by the runtime's name."""
        return template.replace("{amp}", self.amp)

    def source(self, node: ast.AST) -> str:
        """The exact source of an expression; of several lines, in one."""
        (line, column), (end_line, end_column) = self.module.start(node), self.module.end(node)
        rows = self.module.lines[line - 1 : end_line]
        if len(rows) == 1:
            return rows[0][column:end_column]
        return ast.unparse(node)

    def not_understood(self, node: ast.AST, reason: str) -> NotUnderstood:
        """The exception for a place in this file."""
        return NotUnderstood(self.module, node, reason)


def finished(text: str, module: Module) -> str:
    """The text with the runtime's name: ``amp``, unless the file uses that for something else."""
    alias = free_name(module)
    text = text.replace(f"import {RUNTIME} as {STAND_IN}", f"import {RUNTIME} as {alias}")
    text = text.replace(f"import {RUNTIME} as {RUNTIME}", f"import {RUNTIME}")
    return re.sub(rf"\b{STAND_IN}\b", alias, text)  # a name such as `no_amp_layers` holds the same letters


def dropin(path: str) -> str:
    """Where the runtime has a module of Apex; the drop-in itself for the empty path, which holds ``amp_C``."""
    if not path:
        return f"{RUNTIME}.apex"
    return f"{RUNTIME}.apex.{path}" if path.split(".")[0] in api.EXTENSIONS else f"{RUNTIME}.{path}"
