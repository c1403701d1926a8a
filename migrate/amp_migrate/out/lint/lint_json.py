"""The findings as one JSON object; version 1 of a format that only grows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from amp_rules.source.spans import Span

from amp_migrate.lint.diagnostics import Diagnostic
from amp_migrate.lint.lint_run import LintRun
from amp_migrate.out.lint import RenderOptions
from amp_migrate.problems import Problem, shown


def render(run: LintRun, options: RenderOptions) -> Iterator[str]:
    """Yield the document, one finding at a time."""
    mode = {
        "opt_level": run.mode.opt_level,
        "dtype": run.mode.dtype,
        "device": run.mode.device,
        "ddp": run.mode.ddp,
    }
    yield f'{{\n"version": 1,\n"mode": {json.dumps(mode)},\n"findings": ['
    for index, item in enumerate(run.diagnostics):
        yield (",\n" if index else "\n") + json.dumps(_finding(item))
    problems = json.dumps([_problem(problem) for problem in run.problems])
    yield f'\n],\n"problems": {problems},\n"summary": {json.dumps(_summary(run))}\n}}\n'


def _finding(item: Diagnostic) -> dict[str, Any]:
    finding = item.finding
    fix = None
    if finding.fix:
        edits = [{"kind": edit.kind, **_range(item, edit.span), "text": edit.text} for edit in finding.fix.edits]
        if not edits and item.patch:
            edits = [{"kind": "text", **_range(item, part.span), "text": part.text} for part in item.patch]
        fix = {"title": finding.fix.title, "safety": finding.fix.safety, "edits": edits}
    document = {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity,
        "message": finding.message,
        "file": shown(finding.path),
        **_range(item, finding.span),
        "mode": finding.mode,
        "fix": fix,
        "advice": finding.advice,
    }
    return document


def _range(item: Diagnostic, span: Span) -> dict[str, Any]:
    """Return start and end, and the cell in a notebook."""
    start, end = item.locate(span.start), item.locate(span.end)
    found: dict[str, Any] = {
        "start": {"line": start.line, "column": start.column},
        "end": {"line": end.line, "column": end.column},
    }
    return found if start.cell is None else {**found, "cell": start.cell}


def _problem(problem: Problem) -> dict[str, Any]:
    document: dict[str, Any] = {
        "file": shown(problem.path),
        "line": problem.line,
        "column": problem.column,
        "message": problem.message,
    }
    return document if problem.cell is None else {**document, "cell": problem.cell}


def _summary(run: LintRun) -> dict[str, Any]:
    findings = [item.finding for item in run.diagnostics]
    return {
        "files": run.files,
        "unjudged": len(run.unjudged),
        "findings": len(findings),
        "fixable": sum(finding.fix is not None for finding in findings),
        "problems": len(run.problems),
        "baseline": run.known,
        "by_severity": dict(sorted(Counter(finding.severity for finding in findings).items())),
        "by_code": dict(sorted(Counter(finding.code for finding in findings).items())),
    }
