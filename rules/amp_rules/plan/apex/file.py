"""One file between two rewrites of older interfaces."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property

from amp_rules.plan.apex.as_written import AsWritten
from amp_rules.plan.apex.handed_on import HandedOn
from amp_rules.plan.apex.local_ranks import LocalRanks
from amp_rules.plan.apex.references import References
from amp_rules.plan.options import Options
from amp_rules.plan.vocabularies import chosen
from amp_rules.source.modules import Module
from amp_rules.source.resolver import Names, names_of
from amp_rules.text.vocabulary import Vocabulary
from amp_rules.torch import apex as api


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


class HelperOfHalf(NotUnderstood):
    """A helper of Apex for half precision by hand, which goes with the half model or not at all (AMP420)."""


@dataclass
class ApexFile:
    """A file between two rewrites: its present text, and what names in it mean of Apex.

    Attributes:
        wanted_elsewhere: names that other files of the project import or read as attributes.
        handed_on: where the program keeps ``amp`` in attributes; of files as they are on disk.
        as_written: how the program uses its models.
        local_ranks: what the program makes of ranks that it is told by options.
    """

    module: Module
    options: Options
    wanted_elsewhere: frozenset[str] = frozenset()
    handed_on: HandedOn = field(default_factory=HandedOn)
    as_written: AsWritten = field(default_factory=AsWritten)
    local_ranks: LocalRanks | None = None

    @cached_property
    def references(self) -> References:
        """What names in this file mean of Apex."""
        return References(self.module)

    @cached_property
    def names(self) -> Names:
        """What names in this file mean of any package."""
        return names_of(self.module)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Writes what the rewrites wish for, with names that are chosen when nothing of Apex is left."""
        return chosen(self.options).for_drafts()

    def source(self, node: ast.AST) -> str:
        """The exact source of an expression; of several lines, in one."""
        return self.module.code(node)

    def not_understood(self, node: ast.AST, reason: str) -> NotUnderstood:
        """The exception for a place in this file."""
        return NotUnderstood(self.module, node, reason)

    def check_buffers(self) -> None:
        """``optimizer.get_optimizer_combined_grads()`` of Ascend's Apex: the runtime keeps its flat buffers to itself.

        Raises:
            NotUnderstood: the file asks for them.
        """
        for node in self.module.nodes:
            if isinstance(node, ast.Attribute) and node.attr in api.BUFFERS_OF_ASCEND:
                raise self.not_understood(node, f"the runtime has no `{node.attr}`: it hands out no flat buffers")
