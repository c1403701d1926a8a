"""SARIF 2.1.0, which code scanning services read.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amp_rules.report import Span

from amp_migrate.lint.catalogue import RuleInfo
from amp_migrate.lint.diagnostics import Diagnostic, Replacement
from amp_migrate.lint.formats import RenderOptions
from amp_migrate.lint.formats.fingerprints import fingerprinted
from amp_migrate.lint.runner import LintRun
from amp_migrate.problems import Problem

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "performance": "warning", "info": "note"}
_ROOT = "SRCROOT"


def render(run: LintRun, options: RenderOptions) -> Iterator[str]:
    """Yield the log, one finding at a time."""
    used = sorted({item.finding.code for item in run.diagnostics})
    rules = [rule for rule in run.rules if rule.code in used]
    index = {rule.code: number for number, rule in enumerate(rules)}
    driver = {
        "name": "amp-lint",
        "semanticVersion": version("amp-migrate"),
        "rules": [_rule(rule) for rule in rules],
    }
    invocation = {
        "executionSuccessful": not run.problems,
        "toolExecutionNotifications": [_notification(problem) for problem in run.problems],
    }
    head: dict[str, Any] = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"uri": Path.cwd().as_uri().rstrip("/") + "/"}},
        "automationDetails": {"id": f"amp-lint/{str(run.mode).replace(' ', '-')}/"},
        "invocations": [invocation],
    }
    yield f'{{\n"$schema": {json.dumps(_SCHEMA)},\n"version": "2.1.0",\n"runs": [\n'
    yield json.dumps(head)[:-1] + ', "results": ['
    for number, (item, fingerprint) in enumerate(fingerprinted(run.diagnostics)):
        yield (",\n" if number else "\n") + json.dumps(_result(item, fingerprint, index))
    yield "\n]}\n]\n}\n"


def _rule(rule: RuleInfo) -> dict[str, Any]:
    page = rule.page or rule.message
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.message},
        "fullDescription": {"text": f"{rule.message} {rule.advice}".strip()},
        "help": {"text": page, "markdown": page},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {"tags": ["mixed-precision", rule.severity], "problem.severity": _problem_severity(rule)},
    }


def _problem_severity(rule: RuleInfo) -> str:
    """Return the severity in GitHub's words for such rules."""
    return {"error": "error", "info": "recommendation"}.get(rule.severity, "warning")


def _result(item: Diagnostic, fingerprint: str, index: dict[str, int]) -> dict[str, Any]:
    finding = item.finding
    text = finding.message if item.cells is None else f"{item.where}: {finding.message}"
    physical: dict[str, Any] = {"artifactLocation": _artifact(finding.path)}
    if item.cells is None:
        physical["region"] = _region(finding.span)
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [{"physicalLocation": physical}],
        "partialFingerprints": {"ampLint/v1": fingerprint},
        "properties": {"mode": finding.mode, "advice": finding.advice},
    }
    if finding.code in index:
        result["ruleIndex"] = index[finding.code]
    if finding.fix and item.patch and item.cells is None:
        replacements = [_replacement(part) for part in item.patch]
        change = {"artifactLocation": _artifact(finding.path), "replacements": replacements}
        result["fixes"] = [{"description": {"text": finding.fix.title}, "artifactChanges": [change]}]
    return result


def _notification(problem: Problem) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": _artifact(problem.path)}
    if problem.line and problem.cell is None:
        location["region"] = {"startLine": problem.line}
    return {"level": "error", "message": {"text": problem.message}, "locations": [{"physicalLocation": location}]}


def _artifact(path: Path) -> dict[str, str]:
    """Return a file's address, relative to the working directory where it lies below it."""
    try:
        relative = path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return {"uri": path.absolute().as_uri()}
    return {"uri": urllib.parse.quote(relative), "uriBaseId": _ROOT}


def _region(span: Span) -> dict[str, int]:
    return {
        "startLine": span.start.line,
        "startColumn": span.start.column,
        "endLine": span.end.line,
        "endColumn": span.end.column,
    }


def _replacement(part: Replacement) -> dict[str, Any]:
    replacement: dict[str, Any] = {"deletedRegion": _region(part.span)}
    if part.text:
        replacement["insertedContent"] = {"text": part.text}
    return replacement
