"""SARIF 2.1.0, which code scanning services read.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amp_migrate.out.review.fingerprints import fingerprinted
from amp_migrate.out.review.remark import Patch, Region, Remark, RulePage, separated
from amp_migrate.problems import Problem, shown

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT = "SRCROOT"


def log(
    tool: str,
    remarks: Sequence[Remark],
    *,
    rules: Iterable[RulePage],
    problems: Sequence[Problem],
    mode: str,
    fingerprint: str,
) -> Iterator[str]:
    """Yield the log, one remark at a time.

    Args:
        tool: the command.
        remarks: what it found.
        rules: all rules; those with remarks are described.
        problems: the files that it could not deal with.
        mode: what tells this run from others of the same tool.
        fingerprint: the name and version of the tool's way to recognise a remark.
    """
    used = {remark.code for remark in remarks}
    described = [rule for rule in rules if rule.code in used]
    index = {rule.code: number for number, rule in enumerate(described)}
    driver = {
        "name": tool,
        "semanticVersion": version("amp-migrate"),
        "rules": [_rule(rule) for rule in described],
    }
    invocation = {
        "executionSuccessful": not problems,
        "toolExecutionNotifications": [_notification(problem) for problem in problems],
    }
    head: dict[str, Any] = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"uri": Path.cwd().as_uri().rstrip("/") + "/"}},
        "automationDetails": {"id": f"{tool}/{mode}/"},
        "invocations": [invocation],
    }
    yield f'{{\n"$schema": {json.dumps(_SCHEMA)},\n"version": "2.1.0",\n"runs": [\n'
    yield json.dumps(head)[:-1] + ', "results": ['
    known = fingerprinted(remarks, lambda remark: (shown(remark.path), remark.code, remark.line_text))
    yield from separated(json.dumps(_result(remark, {fingerprint: digest}, index)) for remark, digest in known)
    yield "\n]}\n]\n}\n"


def _rule(rule: RulePage) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.message},
        "fullDescription": {"text": rule.full},
        "help": {"text": rule.page, "markdown": rule.page},
        "defaultConfiguration": {"level": rule.level},
        "properties": {"tags": list(rule.tags), "problem.severity": rule.severity},
    }


def _result(remark: Remark, fingerprints: dict[str, str], index: dict[str, int]) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": _artifact(remark.path)}
    if remark.region is not None:
        physical["region"] = _region(remark.region)
    result: dict[str, Any] = {
        "ruleId": remark.code,
        "level": remark.level,
        "message": {"text": remark.text},
        "locations": [{"physicalLocation": physical}],
        "partialFingerprints": fingerprints,
        "properties": dict(remark.properties),
    }
    if remark.code in index:
        result["ruleIndex"] = index[remark.code]
    if remark.patches:
        change = {
            "artifactLocation": _artifact(remark.path),
            "replacements": [_replacement(part) for part in remark.patches],
        }
        result["fixes"] = [{"description": {"text": remark.fix}, "artifactChanges": [change]}]
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


def _region(region: Region) -> dict[str, int]:
    return {
        "startLine": region.start.line,
        "startColumn": region.start.column,
        "endLine": region.end.line,
        "endColumn": region.end.column,
    }


def _replacement(part: Patch) -> dict[str, Any]:
    replacement: dict[str, Any] = {"deletedRegion": _region(part.region)}
    if part.text:
        replacement["insertedContent"] = {"text": part.text}
    return replacement
