"""What is wrong in the steps of a script that keeps its own mixed precision: nothing else of this run looks at them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_rules.checks.step.clip_before_unscale import ClipBeforeUnscale
from amp_rules.checks.step.grad_penalty_scaled import GradPenaltyScaled
from amp_rules.checks.step.loss_divide_after_scale import LossDivideAfterScale
from amp_rules.checks.step.missing_scaler_update import MissingScalerUpdate
from amp_rules.checks.step.scaled_grad_access import ScaledGradAccess
from amp_rules.checks.step.scaler_bypass import ScalerBypass
from amp_rules.checks.step.step_under_autocast import StepUnderAutocast
from amp_rules.checks.step.unscale_order import UnscaleOrder
from amp_rules.lattice.mode import Mode
from amp_rules.lint.linter import Linter
from amp_rules.plan.notes import OWN_STEP
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module
from amp_rules.source.text import SourceError

_CHECKS = (
    ClipBeforeUnscale,
    ScaledGradAccess,
    UnscaleOrder,
    MissingScalerUpdate,
    ScalerBypass,
    StepUnderAutocast,
    GradPenaltyScaled,
    LossDivideAfterScale,
)
"""The rules of amp-lint about what comes between the backward pass and the step."""


def notes(program: Program, modules: Sequence[Module]) -> Iterator[Note]:
    """Yield one for each place that amp-lint finds in files that train, of all ``modules``, as they were read."""
    linter = Linter(Mode("O1", "fp16"), [check() for check in _CHECKS])
    trains = {site.module.path for site in [*program.backwards, *program.steps]}
    for module in modules:
        if module.path not in trains:
            continue
        try:
            findings = linter.lint(module.source).findings
        except (SourceError, RecursionError):
            continue
        for item in findings:
            advice = item.advice.removesuffix(".")
            text = f"{item.message} ({item.code} of amp-lint)"
            if advice:
                text += f": {advice[0].lower()}{advice[1:]}"
            yield Note(module.path, item.span, OWN_STEP.code, OWN_STEP.name, text)
