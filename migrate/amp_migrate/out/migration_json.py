"""The result as JSON, for editors and scripts; version 1 of a format that only grows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amp_rules.plan.report import Edit, Note, Refusal, Report
from amp_rules.source.spans import Position, Span

from amp_migrate.launch.launches import Launch
from amp_migrate.problems import shown
from amp_migrate.run.migration import Run


def render(run: Run, diffs: Mapping[Path, str], cells: Mapping[Path, Mapping[int, bytes]]) -> str:
    """Return the document, sorted so that equal runs give equal bytes.

    ``diffs`` holds the diff of every changed file as text, ``cells`` the diffs of the changed cells of notebooks.
    """
    edits = sorted({edit for report in run.reports for edit in report.edits}, key=_edit_order)
    refusals = sorted({item for report in run.reports for item in report.refusals}, key=refusal_order)
    problems = sorted(run.problems, key=lambda problem: (str(problem.path), problem.line or 0))
    document = {
        "version": 1,
        "entries": [_entry(report) for report in sorted(run.reports, key=lambda report: str(report.entry))],
        "files": [
            {
                "path": shown(path),
                "encoding": run.updates[path].source.encoding,
                "diff": diffs[path],
                "cells": [
                    {"cell": number, "diff": lines.decode("utf-8", "replace")}
                    for number, lines in cells.get(path, {}).items()
                ],
            }
            for path in sorted(run.updates)
        ],
        "edits": [_edit(edit) for edit in edits],
        "refusals": [_refusal(refusal) for refusal in refusals],
        "errors": [
            {
                "path": shown(item.path),
                "cell": item.cell,
                "line": item.line,
                "column": item.column,
                "message": item.message,
            }
            for item in problems
        ],
        "launches": [_launch(launch, launch in run.launches.edited) for launch in run.launches.found],
        "summary": {
            "entries": len(run.reports),
            "files_changed": len(run.updates),
            "edits": len(edits),
            "edits_by_code": dict(sorted(Counter(edit.code for edit in edits).items())),
            "refusals": len(refusals),
            "errors": len(problems),
            "precision": dict(sorted(Counter(report.precision for report in run.reports).items())),
            "distribution": dict(sorted(Counter(report.distribution for report in run.reports).items())),
        },
    }
    return json.dumps(document, indent=2) + "\n"


def _entry(report: Report) -> dict[str, Any]:
    return {
        "path": shown(report.entry),
        "precision": report.precision,
        "distribution": report.distribution,
        "changes": sorted(shown(change.path) for change in report.changes),
        "notes": [_note(item) for item in report.notes],
    }


def _edit(edit: Edit) -> dict[str, Any]:
    return {
        "code": edit.code,
        "name": edit.name,
        "path": shown(edit.path),
        "cell": edit.cell,
        "start": _position(edit.span.start),
        "end": _position(edit.span.end),
        "message": edit.message,
    }


def _launch(launch: Launch, edited: bool) -> dict[str, Any]:
    return {
        "path": shown(launch.path),
        "line": launch.line,
        "command": launch.command,
        "replacement": launch.replacement,
        "scripts": [shown(script) for script in launch.scripts],
        "notes": list(launch.notes),
        "edited": edited,
    }


def _refusal(refusal: Refusal) -> dict[str, Any]:
    return {
        "code": refusal.code,
        "name": refusal.name,
        "path": shown(refusal.path),
        "cell": refusal.cell,
        "start": _position(refusal.span.start) if refusal.span else None,
        "end": _position(refusal.span.end) if refusal.span else None,
        "unit": refusal.unit,
        "reason": refusal.message,
        "recipe": refusal.recipe,
    }


def _note(note: Note) -> dict[str, Any]:
    return {
        "code": note.code,
        "name": note.name,
        "path": shown(note.path),
        "cell": note.cell,
        "line": note.line,
        "text": note.text,
    }


def _position(position: Position) -> dict[str, int]:
    return {"line": position.line, "column": position.column}


def _edit_order(edit: Edit) -> tuple[object, ...]:
    return (str(edit.path), edit.cell or 0, edit.span, edit.code, edit.message)


def refusal_order(refusal: Refusal) -> tuple[object, ...]:
    """By file and place, and by all else that tells two refusals apart."""
    start = refusal.span or Span(Position(0, 0), Position(0, 0))
    return (str(refusal.path), refusal.cell or 0, start, refusal.code, refusal.unit, refusal.message, refusal.recipe)
