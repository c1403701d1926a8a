"""The diagnostic format of reviewdog; its columns count bytes of UTF-8."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from amp_rules.report import Position, Span

from amp_migrate.lint.diagnostics import Diagnostic
from amp_migrate.lint.formats import RenderOptions
from amp_migrate.lint.runner import LintRun
from amp_migrate.problems import shown

_SEVERITIES = {"error": "ERROR", "warning": "WARNING", "performance": "WARNING", "info": "INFO"}


def render(run: LintRun, options: RenderOptions) -> Iterator[str]:
    """Yield the document, one finding at a time."""
    yield '{\n"source": {"name": "amp-lint"},\n"severity": "WARNING",\n"diagnostics": ['
    for index, item in enumerate(run.diagnostics):
        yield (",\n" if index else "\n") + json.dumps(_diagnostic(item))
    yield "\n]\n}\n"


def _diagnostic(item: Diagnostic) -> dict[str, Any]:
    finding = item.finding
    location: dict[str, Any] = {"path": shown(finding.path)}
    message = finding.message
    if item.cells is None:
        location["range"] = _range(item, finding.span)
    else:
        # A line of a cell is no line of the file.
        message = f"{item.where}: {message}"
    document: dict[str, Any] = {
        "message": message,
        "location": location,
        "severity": _SEVERITIES[finding.severity],
        "code": {"value": finding.code},
    }
    if item.patch and item.cells is None:
        document["suggestions"] = [{"range": _range(item, part.span), "text": part.text} for part in item.patch]
    return document


def _range(item: Diagnostic, span: Span) -> dict[str, Any]:
    return {"start": _position(item, span.start), "end": _position(item, span.end)}


def _position(item: Diagnostic, position: Position) -> dict[str, int]:
    return {"line": position.line, "column": item.byte_column(position)}
