"""What every rewrite is given, and what it gives back."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from amp_rules.plan.distribution import Distribution
from amp_rules.plan.options import Options
from amp_rules.plan.own_half.start import OwnStart
from amp_rules.plan.precision import Precision
from amp_rules.plan.quantizing.found import Quantized, find
from amp_rules.plan.quantizing.why_not import NotQuantized
from amp_rules.plan.rule import Rule
from amp_rules.plan.switch import Switch
from amp_rules.plan.vocabularies import chosen
from amp_rules.plan.wanted import wants
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.text.actions import Action
from amp_rules.text.vocabulary import Vocabulary, Written

QUANTIZE = "AMP119"
"""The rewrite that makes a model int8, whose lines stand in several places."""


@dataclass(frozen=True)
class Change:
    """One edit for the reader: the rule, the place, the reason, and the actions that carry it out.

    ``needs_import`` says whether the new code needs the vocabulary's import; ``optional`` what the rule says of itself,
    where this one change differs.
    """

    rule: Rule
    module: Module
    node: ast.AST
    message: str
    actions: Sequence[Action]
    needs_import: bool = False
    optional: bool | None = None

    @classmethod
    def written(
        cls, rule: Rule, module: Module, node: ast.AST, message: str, written: Written, optional: bool | None = None
    ) -> Change:
        """An edit in the words of a vocabulary."""
        return cls(rule, module, node, message, written.actions, written.needs_import, optional)

    @property
    def is_optional(self) -> bool:
        """Whether the program is right without this change."""
        return self.rule.optional if self.optional is None else self.optional


@dataclass
class Context:
    """The program and what was decided about it.

    Attributes:
        distribution: None when that unit is not migrated.
        initialised: whether the script calls ``init`` and prepares its models already.
        own_start: what the script's own flag for half precision asked for, where that was taken out.
        keeps_precision: whether the script keeps a mixed precision of its own, with its own scaler.
        switch: how the command line chooses the level, where it was asked for.
        made: what the rewrites that come first did, for those that are declared ``after`` them.
    """

    program: Program
    options: Options
    precision: Precision
    distribution: Distribution | None
    initialised: bool = False
    keeps_precision: bool = False
    switch: Switch | None = None
    own_start: OwnStart | None = None
    made: list[Change] = field(default_factory=list)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Writes what the rewrites wish for."""
        return chosen(self.options)

    @cached_property
    def quantized(self) -> Quantized | NotQuantized | None:
        """What ``--quantize`` adds, or why it adds nothing; None where nobody asked."""
        kind = self.options.quantize
        if kind is None or not wants(self.options, QUANTIZE, shared=True):
            return None
        if self.initialised:
            return NotQuantized(self.program.entry, None, "`amp.initialize` prepares the model in its own place")
        joined_norms = self.distribution is not None and self.options.sync_bn
        try:
            return find(self.program, kind, self.precision.homes, joined_norms=joined_norms)
        except NotQuantized as declined:
            return declined

    @property
    def processes(self) -> Distribution:
        """What several processes take; for rewrites of that unit, which are not asked where there are none."""
        assert self.distribution is not None
        return self.distribution


def adjacent(statements: Sequence[tuple[Module, ast.stmt]]) -> list[tuple[Module, ast.stmt, ast.stmt]]:
    """Join statements that follow each other in one suite: module, first and last of each group."""
    chosen = {statement for _, statement in statements}
    found = []
    for module, statement in statements:
        where = blocks.place(module, statement)
        if where.index and where.suite[where.index - 1] in chosen:
            continue
        last = where.index
        while last + 1 < len(where.suite) and where.suite[last + 1] in chosen:
            last += 1
        found.append((module, statement, where.suite[last]))
    return found
