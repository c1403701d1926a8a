"""Why a unit is declined, and what to do by hand."""

from __future__ import annotations

import ast

from amp_rules.program.modules import Module
from amp_rules.report import Refusal, Unit
from amp_rules.rule import Rule


class Declined(Exception):
    """A unit cannot be migrated whole.

    Attributes:
        refusal: what the user is told.
    """

    def __init__(self, refusal: Refusal, *, already: bool = False) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.already = already


_REASONS: dict[str, tuple[str, Unit]] = {}


def reason(code: str, name: str, unit: Unit, message: str) -> Rule:
    """A rule that only says why nothing was done."""
    return Rule(code, name, message, unit)


ALREADY_MIXED = reason("AMP190", "already-mixed-precision", "precision", "The script has mixed precision of its own.")
CLOSURE = reason("AMP191", "optimizer-closure", "precision", "The optimizer evaluates a closure.")
NO_OPTIMIZER = reason("AMP192", "no-optimizer-step", "precision", "Gradients are used without an optimizer's step.")
UNKNOWN_STEP = reason("AMP193", "unknown-step", "precision", "It is not known what a call of step() steps.")
UNKNOWN_LOSS = reason("AMP194", "unknown-loss", "precision", "The computation of a loss was not found.")
GRADIENT_ACCESS = reason("AMP195", "gradient-access", "precision", "Gradients are used where they are still scaled.")
UNKNOWN_MODEL = reason("AMP196", "unknown-model", "precision", "The model that an optimizer trains was not found.")
FRAMEWORK = reason("AMP197", "training-framework", "precision", "A framework runs the training step.")
UNREADABLE = reason("AMP198", "unreadable-module", "precision", "A module that the step needs cannot be read.")
OWN_DISTRIBUTION = reason("AMP290", "already-distributed", "distribution", "The script has processes of its own.")
HAND_BATCHES = reason("AMP291", "hand-made-batches", "distribution", "Batches are made by hand.")
NEEDS_PRECISION = reason("AMP292", "step-not-understood", "distribution", "The training step was not understood.")
GRADIENTS_OUTSIDE = reason(
    "AMP293", "model-not-prepared", "distribution", "A model cannot be prepared for several processes."
)
LOCAL_DECISION = reason(
    "AMP294", "decision-by-rank", "distribution", "Each process decides by its own data what it trains on."
)

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Rule))


def decline(
    rule: Rule, module: Module, node: ast.AST | None, message: str, recipe: str, *, already: bool = False
) -> Declined:
    """The exception for a refusal at ``node``."""
    span = module.span(node) if node is not None else None
    return Declined(Refusal(module.path, span, rule.code, rule.name, rule.unit, message, recipe), already=already)
