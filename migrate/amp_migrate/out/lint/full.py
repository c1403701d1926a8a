"""Findings for people: the source with the place underlined, the mode, what to do, and the fix as a small diff."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise

from amp_rules.source.spans import Position

from amp_migrate.lint.diagnostics import Diagnostic, Replacement
from amp_migrate.lint.lint_run import LintRun
from amp_migrate.out.lint import RenderOptions
from amp_migrate.out.lint.concise import COLOURS, headline, is_fixable
from amp_migrate.out.terminal import visible

_BLUE, _RED, _GREEN, _RESET = "\x1b[34m", "\x1b[31m", "\x1b[32m", "\x1b[m"
# Of a long finding so many lines are shown, and then the last one.
_SHOWN = 6
_TAB = "    "


def render(run: LintRun, options: RenderOptions) -> Iterator[str]:
    """Yield one paragraph a finding."""
    for item in run.diagnostics:
        yield "\n".join([headline(item, options), *_excerpt(item, options), *_notes(item, options)]) + "\n\n"


def _excerpt(item: Diagnostic, options: RenderOptions) -> Iterator[str]:
    """Yield the lines of the finding and one around it, numbered, with carets below."""
    span = item.finding.span
    first, last = span.start.line, span.end.line
    numbers = [number for number in sorted(item.lines) if first - 1 <= number <= last + 1]
    if not numbers:
        return
    if last - first >= _SHOWN:
        numbers = [number for number in numbers if number < first + _SHOWN - 1 or number >= last]
    width = len(str(item.locate(span.end).line + 1))
    colour = COLOURS[item.finding.severity]
    previous = numbers[0] - 1
    for number in numbers:
        place = item.locate(Position(number, 1))
        if place.cell != item.start.cell:
            continue
        if number != previous + 1:
            yield _paint(f"{'':{width}} ...", _BLUE, options)
        previous = number
        line = item.lines[number]
        yield _paint(f"{place.line:{width}} |", _BLUE, options) + f" {_plain(line)}".rstrip()
        if first <= number <= last:
            start = span.start.column - 1 if number == first else len(line) - len(line.lstrip())
            stop = span.end.column - 1 if number == last else len(line.rstrip())
            carets = " " * _width(line[:start]) + "^" * max(1, _width(line[start:stop]))
            yield _paint(f"{'':{width}} |", _BLUE, options) + " " + _paint(carets, colour, options)


def _notes(item: Diagnostic, options: RenderOptions) -> Iterator[str]:
    finding = item.finding
    yield f"  = mode: {finding.mode}"
    if finding.advice:
        yield f"  = help: {visible(finding.advice)}"
    if finding.fix is None:
        return
    how = "--fix applies it" if is_fixable(item, options) else "unsafe: read it, then --fix --unsafe-fixes applies it"
    yield f"  = fix: {visible(finding.fix.title)} ({how})"
    changes = list(_diff(item))
    # What moves in or out of a block is seen by its indentation.
    margin = min((len(line) - len(line.lstrip()) for _, line in changes if line.strip()), default=0)
    for sign, line in changes:
        yield _paint(f"      {sign} {_plain(line[margin:].rstrip())}", _RED if sign == "-" else _GREEN, options)


def _diff(item: Diagnostic) -> Iterator[tuple[str, str]]:
    """Yield the lines that the fix takes out and puts in."""
    for parts in _on_shared_lines(item.patch or ()):
        start, end = parts[0].span.start, parts[-1].span.end
        if any(number not in item.lines for number in range(start.line, end.line)):
            continue
        text = item.lines.get(start.line, "")[: start.column - 1] + parts[0].text
        for before, part in pairwise(parts):
            # They share a line, so what stays between them is a piece of it.
            text += item.lines.get(part.span.start.line, "")[before.span.end.column - 1 : part.span.start.column - 1]
            text += part.text
        # Whole lines put in or taken out leave the next line as it is.
        whole = end.column == 1 and (start != end or parts[-1].text.endswith("\n"))
        if start != end:
            numbers = range(start.line, end.line if whole else end.line + 1)
            yield from (("-", item.lines.get(number, "")) for number in numbers)
        text += "" if whole else item.lines.get(end.line, "")[end.column - 1 :]
        yield from (("+", line) for line in text.splitlines() if line.strip())


def _on_shared_lines(patch: Sequence[Replacement]) -> Iterator[list[Replacement]]:
    """Yield the edits in their order, those together that change one line: shown alone, each undid the other."""
    group: list[Replacement] = []
    for part in sorted(patch, key=lambda part: (part.span.start, part.span.end)):
        end = group[-1].span.end if group else None
        if end is not None and (end.line != part.span.start.line or end.column == 1 or part.span.start.column == 1):
            yield group
            group = []
        group.append(part)
    if group:
        yield group


def _plain(text: str) -> str:
    """Return a line with tabs made blanks and control characters visible."""
    return visible(text.replace("\t", _TAB))


def _width(text: str) -> int:
    """Return the columns that a text takes on a terminal: Chinese letters take two each."""
    plain = _plain(text)
    if plain.isascii():
        return len(plain)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in plain
    )


def _paint(text: str, colour: str, options: RenderOptions) -> str:
    return f"{colour}{text}{_RESET}" if options.colour else text
