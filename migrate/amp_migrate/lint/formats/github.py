"""Workflow commands of GitHub Actions, which show the findings in a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from amp_migrate.lint.diagnostics import Diagnostic
from amp_migrate.lint.formats import RenderOptions
from amp_migrate.lint.runner import LintRun
from amp_migrate.problems import shown

_LEVELS = {"error": "error", "warning": "warning", "performance": "warning", "info": "notice"}


def render(run: LintRun, options: RenderOptions) -> Iterator[str]:
    """Yield one command a finding."""
    for item in run.diagnostics:
        finding = item.finding
        properties = {"file": shown(finding.path), **_place(item), "title": f"{finding.code} {finding.name}"}
        listed = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
        text = finding.message if item.cells is None else f"{item.where}: {finding.message}"
        yield f"::{_LEVELS[finding.severity]} {listed}::{_data(text)}\n"


def _place(item: Diagnostic) -> dict[str, int]:
    start, end = item.start, item.end
    if start.cell is not None:
        # A line of a cell is no line of the file that GitHub shows.
        return {"line": 1}
    place = {"line": start.line, "col": start.column, "endLine": end.line, "endColumn": end.column}
    # Columns are understood within one line only.
    return place if start.line == end.line else {"line": start.line, "endLine": end.line}


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
