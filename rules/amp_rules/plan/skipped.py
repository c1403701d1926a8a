"""What a comment without a code keeps as it is was chosen by the user: it is skipped, and not declined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from amp_rules.plan import declining
from amp_rules.plan.notes import NOT_SCALED
from amp_rules.plan.report import Note, Refusal, Report, Unit
from amp_rules.plan.rule import Rule
from amp_rules.plan.selection import Selection
from amp_rules.plan.skip_comments import Skip
from amp_rules.source.modules import Module

ON_PURPOSE = frozenset(
    rule.code for rule in (declining.ASKED_PRECISION, declining.ASKED_DISTRIBUTION, declining.ASKED_APEX)
)
"""Codes of what is left alone because somebody asked for it."""

_REASONS: dict[Unit, Rule] = {
    "precision": declining.ASKED_PRECISION,
    "distribution": declining.ASKED_DISTRIBUTION,
}


def is_skipped(report: Report, unit: Unit) -> bool:
    """Whether all that keeps a unit from being migrated was asked for."""
    left = [item.code for item in report.refusals if item.unit == unit]
    return bool(left) and ON_PURPOSE.issuperset(left)


def with_skipped(report: Report, modules: Iterable[Module], selection: Selection) -> Report:
    """The report in which what a comment keeps is no decline, and no step that came after a migration."""
    skips = {module.path: [skip for skip in selection.skips(module) if not skip.codes] for module in modules}

    def kept_by(item: Refusal | Note) -> Skip | None:
        line = item.span.start.line if item.span else 1
        return next((skip for skip in skips.get(item.path, ()) if skip.holds_for(line, line)), None)

    if not any(skips.values()):
        return report
    refusals = [_as_skipped(item, kept_by(item)) for item in report.refusals]
    changed = replace(report, refusals=tuple(refusals))
    if is_skipped(changed, "precision"):
        # The processes were declined for the step alone.
        refusals = [
            _kept(item, "the training step is skipped") if item.code == declining.NEEDS_PRECISION.code else item
            for item in refusals
        ]
    notes = tuple(item for item in report.notes if item.code != NOT_SCALED.code or kept_by(item) is None)
    return replace(report, refusals=tuple(dict.fromkeys(refusals)), notes=notes)


def _as_skipped(item: Refusal, skip: Skip | None) -> Refusal:
    if skip is None or item.code in ON_PURPOSE or item.unit not in _REASONS:
        return item
    return _kept(item, f"skipped by `{skip.text}` ({item.code} {item.name})")


def _kept(item: Refusal, message: str) -> Refusal:
    rule = _REASONS[item.unit]
    return replace(item, code=rule.code, name=rule.name, message=message, recipe="")
