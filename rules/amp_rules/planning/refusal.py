"""Why a unit is declined, and what to do by hand."""

from __future__ import annotations

import ast

from amp_rules.program.modules import Module
from amp_rules.report import Refusal
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


ALREADY_MIXED = Rule("AMP190", "already-mixed-precision", "The script has mixed precision of its own.", "precision")
CLOSURE = Rule("AMP191", "optimizer-closure", "The optimizer evaluates a closure.", "precision")
NO_OPTIMIZER = Rule("AMP192", "no-optimizer-step", "Gradients are used without an optimizer's step.", "precision")
UNKNOWN_STEP = Rule("AMP193", "unknown-step", "It is not known what a call of step() steps.", "precision")
UNKNOWN_LOSS = Rule("AMP194", "unknown-loss", "The computation of a loss was not found.", "precision")
GRADIENT_ACCESS = Rule("AMP195", "gradient-access", "Gradients are used where they are still scaled.", "precision")
UNKNOWN_MODEL = Rule("AMP196", "unknown-model", "The model that an optimizer trains was not found.", "precision")
FRAMEWORK = Rule("AMP197", "training-framework", "A framework runs the training step.", "precision")
UNREADABLE = Rule("AMP198", "unreadable-module", "A module that the step needs cannot be read.", "precision")
OWN_DISTRIBUTION = Rule("AMP290", "already-distributed", "The script has processes of its own.", "distribution")
HAND_BATCHES = Rule("AMP291", "hand-made-batches", "Batches are made by hand.", "distribution")
NEEDS_PRECISION = Rule("AMP292", "step-not-understood", "The training step was not understood.", "distribution")
GRADIENTS_OUTSIDE = Rule(
    "AMP293", "model-not-prepared", "A model cannot be prepared for many processes.", "distribution"
)
LOCAL_DECISION = Rule("AMP294", "decision-by-rank", "Each process decides what it trains on.", "distribution")
APEX = Rule("AMP490", "apex-not-understood", "Some use of Apex is not understood.", "precision")
ASKED_PRECISION = Rule("AMP199", "step-kept-as-it-is", "The user keeps a part of the step as it is.", "precision")
ASKED_DISTRIBUTION = Rule(
    "AMP299", "processes-kept-out", "The user keeps a part of several processes out.", "distribution"
)
ASKED_LEGACY = Rule("AMP499", "apex-kept-as-it-is", "The user keeps some use of Apex as it is.", "precision")
OLD_PLACE = Rule("AMP590", "old-place-left", "What an old name means at a place is not certain.", "modern")

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Rule))
"""The reasons for which one script is left alone."""

# Found out only when the results for several scripts are joined.
SHARED_MODULE = Rule("AMP390", "shared-module", "Two scripts need a module rewritten differently.", "precision")


def decline(
    rule: Rule, module: Module, node: ast.AST | None, message: str, recipe: str, *, already: bool = False
) -> Declined:
    """The exception for a refusal at ``node``."""
    span = module.span(node) if node is not None else None
    return Declined(Refusal(module.path, span, rule.code, rule.name, rule.unit, message, recipe), already=already)
