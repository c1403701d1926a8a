"""Comments that suppress findings: ``# amp: ignore[AMP601] reason`` and ``# noqa: AMP601``.

A comment holds for a finding if it stands on one of the lines of the finding (up to the end of its first statement),
or on the first or the last line of the statement that the finding begins in.
"""

from __future__ import annotations

import io
import re
import tokenize
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from amp_rules.lint.finding import Finding, Fix
from amp_rules.source.spans import Position, Span
from amp_rules.source.text import SourceFile

from amp_migrate.lint.catalogue import UNUSED_SUPPRESSION
from amp_migrate.lint.diagnostics import Replacement

_IGNORE = re.compile(r"#\s*amp:\s*ignore(?P<file>-file)?(?![\w-])(?:\s*\[(?P<codes>[^\]]*)\])?", re.IGNORECASE)
_NOQA = re.compile(r"#\s*noqa(?![\w-])(?P<colon>\s*:\s*(?P<codes>[\w-]+(?:[,\s]+[A-Za-z]+\d+\b)*))?", re.IGNORECASE)
_CANDIDATE = re.compile(r"#.*?(?:amp:|noqa)", re.IGNORECASE)
_NEWLINE = re.compile(r"\r\n|\r|\n")
_OWN_MARKER = b"amp:"


@dataclass
class Suppression:
    """One comment.

    Attributes:
        line: on which it stands.
        start: the column of its ``#``, from 0, or of the blanks before it where nothing else stands there.
        end: the column past it; what follows in the comment stays.
        codes: what it names, in lower case; None for everything.
        own: whether it is ours, so that it is reported where it suppresses nothing.
        for_file: whether it holds for the whole file.
        statement: first and last line of the statement that it stands in.
        alone: whether nothing else stands on its line.
        used: what of ``codes`` has suppressed something; ``""`` stands for everything.
    """

    line: int
    start: int
    end: int
    codes: tuple[str, ...] | None
    own: bool
    for_file: bool = False
    statement: tuple[int, int] = (0, 0)
    alone: bool = False
    used: set[str] = field(default_factory=set)

    def names(self, finding: Finding) -> str | None:
        """Return which of the codes means the finding, or None."""
        if self.codes is None:
            return ""
        code, name = finding.code.lower(), finding.name.lower()
        return next(
            (item for item in self.codes if item == name or (item[:3] == "amp" and code.startswith(item))), None
        )


@dataclass(frozen=True)
class Asked:
    """What a run asks, to tell idle comments from those that are for other runs.

    Attributes:
        active: the codes that the run can find.
        names: the name of every rule that there is, by its code.
        complete: whether those are all rules that can find anything in the mode of the run.
        mode: as it stands in findings.
    """

    active: Collection[str]
    names: Mapping[str, str]
    complete: bool
    mode: str

    def exists(self, word: str) -> bool:
        """Whether a word of a comment means any rule."""
        return self._matches(word, self.names)

    def is_active(self, word: str) -> bool:
        """Whether a word of a comment means a rule of this run."""
        return self._matches(word, self.active)

    def _matches(self, word: str, codes: Iterable[str]) -> bool:
        return any(
            word == self.names[code].lower() or (word[:3] == "amp" and code.lower().startswith(word)) for code in codes
        )


@dataclass(frozen=True)
class Unused:
    """A comment that suppresses nothing, as a finding with the text of its fix."""

    finding: Finding
    patch: tuple[Replacement, ...]


@dataclass(frozen=True)
class Outcome:
    """What is left of a file's findings.

    Attributes:
        findings: those that nothing suppresses.
        unused: what is to be said of the comments.
    """

    findings: tuple[Finding, ...]
    unused: tuple[Unused, ...] = ()


def suppress(source: SourceFile, findings: Sequence[Finding], asked: Asked) -> Outcome:
    """Take out the findings of a file that a comment suppresses, and judge the comments."""
    data = source.data.lower()
    judged = UNUSED_SUPPRESSION.code in asked.active and _OWN_MARKER in data
    if not (judged or (findings and (_OWN_MARKER in data or b"noqa" in data))):
        return Outcome(tuple(findings))
    comments, statements = find_suppressions(source.text)
    if not comments:
        return Outcome(tuple(findings))
    index = _Index(comments, statements)
    kept = tuple(finding for finding in findings if not index.suppresses(finding))
    if not judged:
        return Outcome(kept)
    unused = [found for comment in comments if comment.own and (found := _judged(comment, source, asked))]
    # A comment for everything does not excuse itself.
    explicit = _Index([item for item in comments if item.codes is not None or item.for_file], statements)
    return Outcome(kept, tuple(item for item in unused if not explicit.suppresses(item.finding)))


class _Index:
    """The comments by line, to find those that hold for a finding."""

    def __init__(self, comments: Iterable[Suppression], statements: Sequence[tuple[int, int]]) -> None:
        self.statements = statements
        self.for_file: list[Suppression] = []
        self.by_line: dict[int, list[Suppression]] = {}
        for comment in comments:
            (self.for_file if comment.for_file else self.by_line.setdefault(comment.line, [])).append(comment)

    def suppresses(self, finding: Finding) -> bool:
        """Whether a comment means the finding; all that do are marked as used."""
        lines = _lines_of(finding, self.statements)
        hidden = False
        for comment in (*self.for_file, *(item for line in lines for item in self.by_line.get(line, ()))):
            if (name := comment.names(finding)) is not None:
                comment.used.add(name)
                hidden = True
        return hidden


def find_suppressions(text: str) -> tuple[list[Suppression], list[tuple[int, int]]]:
    """Return the comments that suppress something, and the lines of each statement."""
    lines = _NEWLINE.split(text)
    if not any(_CANDIDATE.search(line) for line in lines):
        return [], []
    layout = _Layout.of(lines)
    found = [item for comment in layout.comments for item in _parsed(*comment)]
    for item in found:
        item.for_file = item.for_file and item.alone and (not layout.head or item.line < layout.head)
        item.statement = _statement(layout.statements, item.line)
    return found, layout.statements


def suppression_of(text: str, finding: Finding) -> Replacement | None:
    """Return the replacement that puts a comment which suppresses the finding where it begins.

    None where the statement has no line that a comment could follow.
    """
    lines = _NEWLINE.split(text)
    layout = _Layout.of(lines)
    where = _lines_of(finding, layout.statements)
    for comment in (found for row in layout.comments for found in _parsed(*row)):
        if comment.own and not comment.for_file and comment.codes and comment.line in where:
            bracket = lines[comment.line - 1].index("]", comment.start)
            return _inserted(comment.line, bracket, f", {finding.code}")
    _, last = _statement(layout.statements, finding.span.start.line)
    line = finding.span.start.line if finding.span.start.line in layout.ends else last
    if line not in layout.ends:
        return None
    end = len(lines[line - 1].rstrip())
    return _inserted(line, end, f"  # amp: ignore[{finding.code}]")


def _inserted(line: int, column: int, text: str) -> Replacement:
    place = Position(line, column + 1)
    return Replacement(Span(place, place), text)


def _lines_of(finding: Finding, statements: Sequence[tuple[int, int]]) -> set[int]:
    """The lines on which a comment holds for a finding."""
    span = finding.span
    first, last = _statement(statements, span.start.line)
    return {first, last, *range(span.start.line, min(span.end.line, last) + 1)}


@dataclass
class _Layout:
    """What the tokens of a text tell.

    Attributes:
        comments: line, column, text, and whether nothing else stands on the line.
        statements: first and last line of each.
        ends: the lines after which a comment may stand: those that end neither in a string nor with a backslash.
        head: the line of the first statement that is no docstring; 0 if there is none.
    """

    comments: list[tuple[int, int, str, bool]] = field(default_factory=list)
    statements: list[tuple[int, int]] = field(default_factory=list)
    ends: set[int] = field(default_factory=set)
    head: int = 0

    @classmethod
    def of(cls, lines: Sequence[str]) -> _Layout:
        """Read the lines of a text that is Python."""
        layout, first = cls(), 0
        try:
            for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
                if token.type in (tokenize.NL, tokenize.NEWLINE):
                    layout.ends.add(token.start[0])
                if token.type == tokenize.COMMENT:
                    layout.comments.append((*token.start, token.string, not token.line[: token.start[1]].strip()))
                elif token.type == tokenize.NEWLINE:
                    layout.statements.append((first, token.start[0]))
                    first = 0
                elif not first and token.type not in _LAYOUT:
                    first = token.start[0]
                    if not layout.head and token.type != tokenize.STRING:
                        layout.head = first
        except (tokenize.TokenError, SyntaxError):
            # The parser took the text, so what is missing are the statements at its end only.
            pass
        return layout


_LAYOUT = frozenset({tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER})


def _parsed(line: int, column: int, comment: str, alone: bool) -> Iterable[Suppression]:
    for match in _IGNORE.finditer(comment):
        # The reason goes with the code, up to the next comment on the same line.
        following = comment.find("#", match.end())
        end = following if following >= 0 else len(comment)
        codes = match["codes"]
        names = None if codes is None else tuple(re.findall(r"[\w-]+", codes.lower()))
        yield Suppression(line, column + match.start(), column + end, names, True, bool(match["file"]), alone=alone)
    for match in _NOQA.finditer(comment):
        names = None if match["colon"] is None else tuple(re.findall(r"[\w-]+", match["codes"].lower()))
        yield Suppression(line, column + match.start(), column + match.end(), names, False, alone=alone)


def _statement(statements: Sequence[tuple[int, int]], line: int) -> tuple[int, int]:
    """Return the lines of the statement that covers ``line``."""
    index = bisect_left(statements, line, key=lambda statement: statement[1])
    if index < len(statements) and statements[index][0] <= line:
        return statements[index]
    return line, line


def _judged(comment: Suppression, source: SourceFile, asked: Asked) -> Unused | None:
    """Return what is wrong with a comment of ours, if anything is."""
    span = Span(Position(comment.line, comment.start + 1), Position(comment.line, comment.end + 1))
    rule = UNUSED_SUPPRESSION
    if comment.codes is None:
        if comment.used or not asked.complete:
            return None
        message = "this comment suppresses nothing"
    else:
        unknown = [item for item in comment.codes if not asked.exists(item)]
        idle = [item for item in comment.codes if item not in comment.used and asked.is_active(item)]
        if not idle and not unknown:
            return None
        parts = [f"this comment suppresses no {_listed(idle)}"] if idle else []
        message = "; ".join([*parts, *([f"no rule is called {_listed(unknown)}"] if unknown else [])])
        if len(idle) + len(unknown) < len(comment.codes):
            return Unused(Finding(source.path, span, rule.code, rule.name, rule.severity, message, asked.mode), ())
    fix = Fix(rule.fix_title, "safe", ())
    finding = Finding(source.path, span, rule.code, rule.name, rule.severity, message, asked.mode, fix, rule.advice)
    return Unused(finding, (_removal(comment, source),))


def _listed(words: Iterable[str]) -> str:
    return ", ".join(word.upper() if word.startswith("amp") else word for word in words)


def _removal(comment: Suppression, source: SourceFile) -> Replacement:
    """Return the replacement that takes the comment out, with its line if nothing else is there."""
    line = _NEWLINE.split(source.text)[comment.line - 1]
    before, after = line[: comment.start], line[comment.end :]
    if not before.strip() and not after.strip():
        return Replacement(Span(Position(comment.line, 1), Position(comment.line + 1, 1)), "")
    start = comment.start if after.strip() else len(before.rstrip())
    end = comment.end if after.strip() else len(line)
    return Replacement(Span(Position(comment.line, start + 1), Position(comment.line, end + 1)), "")
