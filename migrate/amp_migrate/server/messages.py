"""Findings, fixes and pages as the protocol has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from amp_rules.lint.finding import Severity
from amp_rules.source.spans import Position, Span
from lsprotocol import types

from amp_migrate.lint.catalogue import UNUSED_SUPPRESSION, RuleInfo
from amp_migrate.lint.diagnostics import Diagnostic, Replacement
from amp_migrate.lint.pages import explain
from amp_migrate.problems import Problem
from amp_migrate.server.found import Found
from amp_migrate.server.positions import Lines

SOURCE = "amp-lint"
FIX_ALL = "source.fixAll.amp-lint"

# Editors show hints as dots that nobody sees, so what only costs speed is information as well.
_SEVERITIES: Mapping[Severity, types.DiagnosticSeverity] = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "performance": types.DiagnosticSeverity.Information,
    "info": types.DiagnosticSeverity.Information,
}
_TAGS = {
    UNUSED_SUPPRESSION.code: [types.DiagnosticTag.Unnecessary],
    "AMP826": [types.DiagnosticTag.Deprecated],
}
"""What editors fade, or strike through."""


def diagnostics(found: Found, lines: Lines, page: Mapping[str, str]) -> list[types.Diagnostic]:
    """Return what an editor shows of a text.

    Args:
        found: what was found in it.
        lines: its lines.
        page: the address of the page of each rule that has one.
    """
    shown = [diagnostic(item, lines, page) for item in found.diagnostics]
    if found.problem is not None and found.problem.line is not None:
        shown.append(_of_problem(found.problem, found.problem.line, lines))
    return shown


def diagnostic(item: Diagnostic, lines: Lines, page: Mapping[str, str]) -> types.Diagnostic:
    """Return one finding."""
    finding = item.finding
    href = page.get(finding.code)
    return types.Diagnostic(
        range=lines.range(finding.span),
        message=f"{finding.message}\n{finding.advice}" if finding.advice else finding.message,
        severity=_SEVERITIES[finding.severity],
        code=finding.code,
        code_description=types.CodeDescription(href) if href else None,
        source=SOURCE,
        tags=_TAGS.get(finding.code),
        data={"name": finding.name, "mode": finding.mode},
    )


def _of_problem(problem: Problem, line: int, lines: Lines) -> types.Diagnostic:
    """Return the syntax error that keeps a text from being judged, up to the end of its line."""
    line = min(line, len(lines.rows))
    row = lines.rows[line - 1]
    column = min(problem.column or len(row) - len(row.lstrip()) + 1, len(row) + 1)
    span = Span(Position(line, column), Position(line, len(row) + 1))
    return types.Diagnostic(lines.range(span), problem.message, severity=types.DiagnosticSeverity.Error, source=SOURCE)


def hover(
    found: Found, lines: Lines, place: types.Position, rules: Mapping[str, RuleInfo], markdown: bool
) -> types.Hover | None:
    """Return the pages of the rules that have a finding at a place, or None."""
    here = [item for item in found.diagnostics if _touches(lines.range(item.finding.span), types.Range(place, place))]
    if not here:
        return None
    codes = dict.fromkeys(item.finding.code for item in here)
    text = "\n---\n\n".join(explain([code], [rules[code]]) for code in codes)
    kind = types.MarkupKind.Markdown if markdown else types.MarkupKind.PlainText
    return types.Hover(types.MarkupContent(kind, text), lines.range(here[0].finding.span))


def at(found: Found, lines: Lines, span: types.Range) -> list[Diagnostic]:
    """Return the findings that a selection touches."""
    return [item for item in found.diagnostics if _touches(lines.range(item.finding.span), span)]


def _touches(one: types.Range, other: types.Range) -> bool:
    return _order(one.start) <= _order(other.end) and _order(other.start) <= _order(one.end)


def _order(place: types.Position) -> tuple[int, int]:
    return place.line, place.character


def workspace_edit(
    uri: str, version: int | None, edits: Iterable[Replacement], lines: Lines, versioned: bool
) -> types.WorkspaceEdit:
    """Return edits of one file; where the editor can tell versions apart, of that version alone."""
    changes = [types.TextEdit(lines.range(edit.span), _with_ends(edit.text, lines.newline)) for edit in edits]
    if not versioned:
        return types.WorkspaceEdit(changes={uri: changes})
    document = types.OptionalVersionedTextDocumentIdentifier(uri, version)
    return types.WorkspaceEdit(document_changes=[types.TextDocumentEdit(document, list(changes))])


def _with_ends(text: str, newline: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", newline)


class RulePages:
    """The pages of rules as files, for editors that make a link of a code.

    Args:
        rules: all that there are.
    """

    def __init__(self, rules: Mapping[str, RuleInfo]) -> None:
        self._rules = rules
        self._known: dict[Path, dict[str, str]] = {}

    def of(self, found: Found, folder: Path | None) -> Mapping[str, str]:
        """Return the addresses of the pages of the rules that found something.

        Args:
            found: what was found.
            folder: where what can be found again is kept; None for nowhere, so that no code is a link.
        """
        if folder is None:
            return {}
        known = self._known.setdefault(folder, {})
        for code in {item.finding.code for item in found.diagnostics} - known.keys():
            if code in self._rules and (file := self._written(folder / "pages", code)) is not None:
                known[code] = file.resolve().as_uri()
        return known

    def _written(self, folder: Path, code: str) -> Path | None:
        file = folder / f"{code}.md"
        text = explain([code], [self._rules[code]])
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not file.is_file() or file.read_text(encoding="utf-8") != text:
                file.write_text(text, encoding="utf-8")
        except OSError:
            # A folder that cannot be written to costs the link alone.
            return None
        return file
