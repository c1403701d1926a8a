"""GitLab's code quality report, a part of the Code Climate format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from amp_migrate.lint.diagnostics import Diagnostic
from amp_migrate.lint.lint_run import LintRun
from amp_migrate.out.lint import RenderOptions
from amp_migrate.out.lint.lint_remarks import recognised_by
from amp_migrate.out.review.fingerprints import fingerprinted
from amp_migrate.problems import shown

_SEVERITIES = {"error": "critical", "warning": "major", "performance": "minor", "info": "info"}


def render(run: LintRun, options: RenderOptions) -> Iterator[str]:
    """Yield the list, one finding at a time."""
    yield "["
    for index, (item, fingerprint) in enumerate(fingerprinted(run.diagnostics, recognised_by)):
        yield (",\n" if index else "\n") + json.dumps(_issue(item, fingerprint))
    yield "\n]\n"


def _issue(item: Diagnostic, fingerprint: str) -> dict[str, Any]:
    finding = item.finding
    start, end = item.start, item.end
    message = finding.message if start.cell is None else f"cell {start.cell}:{start.line}: {finding.message}"
    whole = {"begin": {"line": 1, "column": 1}, "end": {"line": 1, "column": 1}}
    lines = {
        "begin": {"line": start.line, "column": start.column},
        "end": {"line": end.line, "column": end.column},
    }
    return {
        "type": "issue",
        "check_name": finding.code,
        "description": f"{finding.code} [{finding.name}] {message}",
        "severity": _SEVERITIES[finding.severity],
        "fingerprint": fingerprint,
        "location": {"path": shown(finding.path), "positions": lines if start.cell is None else whole},
    }
