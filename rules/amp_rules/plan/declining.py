"""Why a unit is declined, and what to do by hand."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from amp_rules.plan.report import Refusal
from amp_rules.plan.rule import Rule
from amp_rules.source.modules import Module


class Declined(Exception):
    """A unit cannot be migrated whole.

    Attributes:
        refusals: what the user is told: one reason or more, the one that decides first.
        already: whether the first says that the script has of its own what the unit would give it.
    """

    def __init__(self, *refusals: Refusal, already: bool = False) -> None:
        super().__init__(refusals[0].message)
        self.refusals = refusals
        self.already = already

    @property
    def refusal(self) -> Refusal:
        """The reason that decides, for those who can name only one."""
        return self.refusals[0]


class Reasons:
    """The reasons for declining a unit, collected so that a user mends them in one go and not one by one.

    A check that can go on after a reason yields it, for :meth:`extend`. One that computes something cannot: it raises,
    inside of :meth:`collecting`. What needs its result is then skipped: without the fact, it would only report what
    follows from the reason that is known already::

        reasons = Reasons()
        reasons.extend(gradient_hooks(program))
        with reasons.collecting():
            steps = steps_of(program)
        reasons.decline()
    """

    def __init__(self) -> None:
        self._found: list[Declined] = []

    def extend(self, found: Iterable[Declined]) -> None:
        """Take what a check yields; of its own order, so that the report is the same every time."""
        self._found.extend(found)

    def begin_with(self, found: Iterable[Declined], *rules: Rule) -> None:
        """Put what a check yields before the reasons that follow from it, where some are of these rules."""
        codes = {rule.code for rule in rules}
        if any(refusal.code in codes for declined in self._found for refusal in declined.refusals):
            self._found = [*found, *self._found]

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Take what the block raises as :class:`Declined`, and go on after it."""
        try:
            yield
        except Declined as declined:
            self._found.append(declined)

    def drop(self, is_idle: Callable[[Refusal], bool]) -> None:
        """Leave out the reasons whose every place never runs."""
        self._found = [declined for declined in self._found if not all(map(is_idle, declined.refusals))]

    def decline(self) -> None:
        """Raise all that was found, each reason once.

        Raises:
            Declined: there is a reason.
        """
        if self._found:
            refusals = dict.fromkeys(refusal for declined in self._found for refusal in declined.refusals)
            raise Declined(*refusals, already=self._found[0].already)


def decline_at_first(found: Iterable[Declined]) -> None:
    """Raise the first reason that a check yields: for what settles the question, whatever else there is.

    Raises:
        Declined: there is a reason.
    """
    for declined in found:
        raise declined


ALREADY_MIXED = Rule("AMP190", "already-mixed-precision", "The script has its own mixed precision.", "precision")
CLOSURE = Rule("AMP191", "optimizer-closure", "The optimizer evaluates a closure.", "precision")
NO_OPTIMIZER = Rule("AMP192", "no-optimizer-step", "Gradients are used without an optimizer's step.", "precision")
UNKNOWN_STEP = Rule("AMP193", "unknown-step", "It is not known what a call of step() steps.", "precision")
UNKNOWN_LOSS = Rule("AMP194", "unknown-loss", "The computation of a loss was not found.", "precision")
GRADIENT_ACCESS = Rule("AMP195", "gradient-access", "Gradients are used where they are still scaled.", "precision")
UNKNOWN_MODEL = Rule("AMP196", "unknown-model", "The model that an optimizer trains was not found.", "precision")
FRAMEWORK = Rule("AMP197", "training-framework", "A framework runs the training step.", "precision")
UNREADABLE = Rule("AMP198", "unreadable-module", "A module that the step needs cannot be read.", "precision")
OWN_DISTRIBUTION = Rule("AMP290", "already-distributed", "The script has its own distributed training.", "distribution")
HAND_BATCHES = Rule("AMP291", "hand-made-batches", "Batches are made by hand.", "distribution")
NEEDS_PRECISION = Rule("AMP292", "step-not-understood", "The training step was not understood.", "distribution")
GRADIENTS_OUTSIDE = Rule(
    "AMP293", "model-not-prepared", "A model cannot be prepared for many processes.", "distribution"
)
NOT_SHARDED = Rule("AMP295", "not-sharded", "A model cannot be sharded over the processes.", "distribution")
LOCAL_DECISION = Rule("AMP294", "decision-by-rank", "Each process decides what it trains on.", "distribution")
BATCHES_IN_A_ROW = Rule("AMP296", "batches-in-a-row", "Each batch continues where the last one ended.", "distribution")
TABLES_NOT_SHARDED = Rule(
    "AMP298", "embedding-not-sharded", "Embedding tables cannot be sharded over the processes.", "distribution"
)
FILES = Rule("AMP297", "files-of-one-process", "Files cannot be left to one process.", "distribution")
APEX = Rule("AMP490", "apex-not-understood", "Some use of Apex is not understood.", "precision")
ASKED_PRECISION = Rule(
    "AMP199", "step-kept-as-it-is", "A comment or an option leaves out a part of the training step.", "precision"
)
ASKED_DISTRIBUTION = Rule(
    "AMP299",
    "processes-kept-out",
    "A comment or an option leaves out a part of the migration to several processes.",
    "distribution",
)
ASKED_APEX = Rule("AMP499", "apex-kept-as-it-is", "A comment or an option leaves out some use of Apex.", "precision")
OLD_PLACE = Rule("AMP590", "old-place-left", "What an old name means at a place is not certain.", "modern")

NOT_IN_TORCH = Rule("AMP392", "not-in-plain-torch", "Plain PyTorch cannot express something.", "precision")
OTHER_FRAMEWORK = Rule("AMP393", "other-framework", "A framework other than PyTorch trains.", "precision")

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Rule))
"""The reasons for which one script is left alone."""

# Found out only in what the edits make of the files. Where that is sound without those for several processes, only the
# distribution is left out.
DRAFT = Rule("AMP391", "draft-check", "The tool's own check found a bug in its draft.", "precision")

# Found out only when the results for several scripts are joined.
SHARED_MODULE = Rule("AMP390", "shared-module", "Two scripts need a module rewritten differently.", "precision")


NO_SECOND_SCALER = "nothing to do; a second scaler would scale the gradients twice"
"""What to do where a script scales its loss already."""
TORCH_NOT_APEX = (
    "choose torch's mixed precision where note AMP484 names Apex; a second scaler would scale the gradients twice"
)
"""What to do where the script can also choose Apex, which cannot run."""
STEP_FIRST = "mend what the reason for precision names, then migrate again"
"""What to do for several processes where the training step is not understood."""


def decline(
    rule: Rule, module: Module, node: ast.AST | None, message: str, recipe: str, *, already: bool = False
) -> Declined:
    """The exception for a refusal at ``node``."""
    span = module.span(node) if node is not None else None
    return Declined(Refusal(module.path, span, rule.code, rule.name, rule.unit, message, recipe), already=already)
