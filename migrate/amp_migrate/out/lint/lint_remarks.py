"""Findings as the formats for review tools take them."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.lint.finding import Severity
from amp_rules.source.spans import Position, Span

from amp_migrate.lint.diagnostics import Diagnostic
from amp_migrate.lint.lint_run import LintRun
from amp_migrate.out.review.fingerprints import Key
from amp_migrate.out.review.remark import Level, Patch, Point, Region, Remark
from amp_migrate.problems import shown

LEVELS: dict[Severity, Level] = {"error": "error", "warning": "warning", "performance": "warning", "info": "note"}


def remarks(run: LintRun) -> Iterator[Remark]:
    """Yield one remark a finding; of a line in a notebook's cell, which those tools do not know, the message tells."""
    for item in run.diagnostics:
        finding = item.finding
        in_file = item.cells is None
        patches: tuple[Patch, ...] = ()
        if finding.fix and item.patch and in_file:
            patches = tuple(Patch(_region(item, part.span), part.text) for part in item.patch)
        yield Remark(
            finding.path,
            LEVELS[finding.severity],
            finding.code,
            f"{finding.code} {finding.name}",
            finding.message if in_file else f"{item.where}: {finding.message}",
            _region(item, finding.span) if in_file else None,
            patches,
            finding.fix.title if finding.fix else "",
            item.line_text,
            {"mode": finding.mode, "advice": finding.advice},
        )


def recognised_by(item: Diagnostic) -> Key:
    """What a finding's fingerprint is made of."""
    return shown(item.finding.path), item.finding.code, item.line_text


def _region(item: Diagnostic, span: Span) -> Region:
    return Region(_point(item, span.start), _point(item, span.end))


def _point(item: Diagnostic, position: Position) -> Point:
    return Point(position.line, position.column, item.byte_column(position))
