"""A migration as the formats for review tools take it: a remark for each hunk of the diff, each refusal, each note."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from amp_rules.plan.declining import NEEDS_PRECISION
from amp_rules.plan.notes import NOT_SCALED, in_order
from amp_rules.plan.report import Edit, Note, Refusal, Report
from amp_rules.plan.rule import Rule
from amp_rules.plan.skipped import ON_PURPOSE
from amp_rules.source.text import SourceError, SourceFile

from amp_migrate.notebook.source import NotebookSource, load
from amp_migrate.out.diff import changes, grouped
from amp_migrate.out.migration_json import refusal_order
from amp_migrate.out.review import github, rdjson, sarif
from amp_migrate.out.review.remark import Level, Patch, Point, Region, Remark, RulePage, of_problem
from amp_migrate.problems import place
from amp_migrate.report.hunks import Label, labelled
from amp_migrate.run.migration import Run

FORMATS = ("github", "sarif", "rdjson")
_TOOL = "amp-migrate"
# Imports only make room for what the other rewrites do.
_IMPORTS = ("AMP101", "AMP408")
_LEVELS: tuple[Level, ...] = ("error", "warning", "note")
# Every change of a file has an edit; should one be missing, the suggestion is still to be complete.
_UNNAMED = Label("", _TOOL, "Belongs to the migration.", 0)
_UTF_8 = ("utf-8", "utf-8-sig", "ascii")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def render(run: Run, output_format: str, given: SourceFile | None = None) -> Iterator[str]:
    """Yield the text of a run in one of :data:`FORMATS`; ``given`` is what came from standard input."""
    found = [*_hunks(run), *_refusals(run, given), *_notes(run, given)]
    if output_format == "sarif":
        return sarif.log(
            _TOOL, found, rules=_pages(), problems=run.problems, mode="migration", fingerprint="ampMigrate/v1"
        )
    found = [*(of_problem(problem, _TOOL) for problem in run.problems), *found]
    if output_format == "github":
        return github.commands(_most_important_first(found))
    # Where its columns, bytes of UTF-8, are not those of the file, a suggestion would cut letters in two.
    foreign = {path for path, update in run.updates.items() if update.source.encoding not in _UTF_8}
    return rdjson.document(_TOOL, (replace(item, patches=()) if item.path in foreign else item for item in found))


def _most_important_first(remarks: Iterable[Remark]) -> list[Remark]:
    """Order remarks for a reader who is shown some of each level only: one of every file, then a second one."""
    seen: Counter[tuple[Level, Path]] = Counter()
    turns = []
    for remark in sorted(remarks, key=lambda remark: (str(remark.path), _rank(remark.code))):
        turns.append((_LEVELS.index(remark.level), seen[remark.level, remark.path], remark))
        seen[remark.level, remark.path] += 1
    return [remark for _, _, remark in sorted(turns, key=lambda turn: turn[:2])]


def _rank(code: str) -> tuple[bool, bool, str]:
    """What is told first: what a migration cannot do without, then the imports that it needs, then what is optional."""
    rule = _rules().get(code)
    return (rule is not None and rule.optional, code in _IMPORTS, code)


# ---- what changes ----------------------------------------------------------------------------------------------


def _hunks(run: Run) -> Iterator[Remark]:
    """Yield one remark for each hunk of the diff, file by file."""
    edits: dict[Path, list[Edit]] = {}
    for edit in {edit for report in run.reports for edit in report.edits}:
        edits.setdefault(edit.path.resolve(), []).append(edit)
    for path, update in sorted(run.updates.items()):
        own = sorted(edits.get(path, []), key=lambda edit: (edit.cell or 0, edit.span, edit.code, edit.message))
        if isinstance(update.source, NotebookSource):
            for number, before, after in update.source.changed_cells(update.text):
                text = _Text(path, tuple(_split(before)), cell=number)
                yield from _hunks_of(text, after, [edit for edit in own if edit.cell == number] or own)
        else:
            yield from _hunks_of(_Text.of(update.source), update.text, own)


def _hunks_of(text: _Text, after: str, edits: Sequence[Edit]) -> Iterator[Remark]:
    new = _split(after)
    found = list(changes(text.lines, new))
    labels = labelled(found, edits)
    for group in grouped(found):
        mine = dict.fromkeys(label for change in group for label in labels[change])
        added = "".join(new[group[0].new_start : group[-1].new_stop])
        ordered = sorted(mine, key=lambda label: (_rank(label.code), label.line))
        yield _hunk(text, group[0].old_start, group[-1].old_stop, added, ordered or [_UNNAMED])


def _hunk(text: _Text, first: int, last: int, added: str, labels: Sequence[Label]) -> Remark:
    names = list(dict.fromkeys(f"{label.code} {label.name}".strip() for label in labels))
    messages = [f"{label.code} {label.name}: {label.message}" for label in labels]
    codes = sorted({label.code for label in labels})
    patch = text.patch(first, last, added)
    # A hunk that only inserts is recognised by the line before it.
    known = text.lines[first:last] or text.lines[max(0, first - 1) : first]
    return Remark(
        text.path,
        "note",
        labels[0].code,
        names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else ""),
        text.placed(labels[0].message if len(labels) == 1 else "\n".join(messages), patch.region.start),
        patch.region if text.cell is None else None,
        (patch,) if text.cell is None else (),
        f"Rewrite for {', '.join(codes)}",
        " ".join("".join(known).split()),
        {"rules": codes},
    )


# ---- what is left alone ----------------------------------------------------------------------------------------


def _refusals(run: Run, given: SourceFile | None) -> Iterator[Remark]:
    """Yield one remark for each refusal that somebody may do something about, once for each place."""
    texts = _Texts(run, given)
    found = {item for report in run.reports for item in _open(report)}
    for item in sorted(found, key=refusal_order):
        message = f"{item.message}\n{item.recipe}" if item.recipe else item.message
        yield _remark(item, "warning", message, item.message, texts.of(item), {"unit": item.unit})


def _open(report: Report) -> Iterator[Refusal]:
    """Yield the refusals of a script without those of what is done already, is kept as it is on request, or is told."""
    outcomes = {"precision": report.precision, "distribution": report.distribution}
    told = {(item.path, item.cell, item.span) for item in report.refusals if item.code != NEEDS_PRECISION.code}
    for item in report.refusals:
        again = item.code == NEEDS_PRECISION.code and (item.path, item.cell, item.span) in told
        if not again and item.code not in ON_PURPOSE and outcomes.get(item.unit) != "already":
            yield item


def _remark(
    item: Refusal | Note, level: Level, message: str, known_by: str, text: _Text, properties: Mapping[str, str]
) -> Remark:
    """A remark at the place of something that was left alone or noted.

    Args:
        item: what it is about.
        level: how much it matters.
        message: what a reader is told.
        known_by: by what it is recognised where it has no line.
        text: the file, or its cell.
        properties: what programs may want to know besides.
    """
    region = None
    if item.span is not None:
        start, end = (text.point(at.line - 1, at.column - 1) for at in (item.span.start, item.span.end))
        message = text.placed(message, start)
        region = Region(start, end)
    in_file = region is not None and text.cell is None
    return Remark(
        text.path,
        level,
        item.code,
        f"{item.code} {item.name}",
        message,
        region if in_file else None,
        line_text=" ".join(text.line(region.start.line).split()) if region and in_file else known_by,
        properties=dict(properties),
    )


# ---- what is noted ---------------------------------------------------------------------------------------------


def _notes(run: Run, given: SourceFile | None) -> Iterator[Remark]:
    """Yield one remark for each note, once for each place."""
    texts = _Texts(run, given)
    for item in in_order(note for report in run.reports for note in report.notes):
        # What fails a check is more than something to know.
        level: Level = "warning" if item.code == NOT_SCALED.code else "note"
        yield _remark(item, level, item.text, item.text, texts.of(item), {})


def _read(path: Path) -> SourceFile:
    """Read a file once more, of which only the columns are wanted; it may be gone by now."""
    try:
        return load(path)
    except SourceError:
        return SourceFile(path, b"", "", "utf-8")


# ---- places ----------------------------------------------------------------------------------------------------


class _Texts:
    """The files that something is told of, as they were before."""

    def __init__(self, run: Run, given: SourceFile | None) -> None:
        self._sources: dict[Path, SourceFile] = {path: update.source for path, update in run.updates.items()}
        if given is not None:
            self._sources[given.path] = given

    def of(self, item: Refusal | Note) -> _Text:
        """The text that the places of an item are in: of the file, or of its cell."""
        path = item.path.resolve()
        return replace(_Text.of(self._sources.get(path) or _read(path)), cell=item.cell)


@dataclass(frozen=True)
class _Text:
    """The original text of a file, or of a cell of a notebook.

    Attributes:
        lines: split as git does.
        mark: the number of bytes before the first line, those of a byte order mark.
    """

    path: Path
    lines: tuple[str, ...]
    cell: int | None = None
    mark: int = 0

    @classmethod
    def of(cls, source: SourceFile) -> _Text:
        """The text of a whole file."""
        return cls(source.path.resolve(), tuple(_split(source.text)), mark=3 * (source.encoding == "utf-8-sig"))

    def line(self, number: int) -> str:
        """The line with that number, counted from 1, or an empty one behind the last."""
        return self.lines[number - 1] if number <= len(self.lines) else ""

    def point(self, index: int, column: int) -> Point:
        """The place before the character ``column`` of the line ``index``, both counted from 0."""
        before = self.line(index + 1)[:column]
        size = len(before.encode("utf-8", "surrogatepass")) + (0 if index else self.mark)
        return Point(index + 1, column + 1, size + column - len(before) + 1)

    def placed(self, message: str, start: Point) -> str:
        """The message, with the place where the formats know none: in a cell."""
        if self.cell is None:
            return message
        return f"{place(self.path, start.line, start.column, cell=self.cell)}: {message}"

    def patch(self, first: int, last: int, added: str) -> Patch:
        """Put ``added`` in the place of the lines from ``first`` up to ``last``, counted from 0.

        A line end that stays is left out, so that the last line touched is the last one that changes.
        """
        lines = self.lines
        start, end = (first, 0), (last, 0)
        if first < last:
            kept = _line_end(lines[last - 1])
            if not kept or kept == _line_end(added):
                end = (last - 1, len(lines[last - 1]) - len(kept))
                added = added.removesuffix(kept)
        elif first == len(lines) > 0 and _line_end(lines[-1]) == _line_end(added) != "":
            # There is no line to insert before: it goes to the end of the last one.
            kept = _line_end(added)
            start = end = (last - 1, len(lines[-1]) - len(kept))
            added = kept + added.removesuffix(kept)
        return Patch(Region(self.point(*start), self.point(*end)), added)


def _split(text: str) -> list[str]:
    """Split at line feeds only, as git and review tools do."""
    return _LINE.findall(text)


def _line_end(text: str) -> str:
    return "\r\n" if text.endswith("\r\n") else "\n" if text.endswith("\n") else ""


# ---- the rules -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _rules() -> Mapping[str, Rule]:
    """The rewrites and the reasons for declining, by code."""
    from amp_rules.rewrites import all_documented

    return {rule.code: rule for rule in all_documented()}


def _pages() -> Iterator[RulePage]:
    """Yield what is to be known of each rule, by code."""
    from amp_rules.plan.refusal_pages import all_reasons

    reasons = {rule.code for rule in all_reasons()} | {NOT_SCALED.code}
    for code, rule in sorted(_rules().items()):
        level: Level = "warning" if code in reasons else "note"
        severity = "warning" if code in reasons else "recommendation"
        page = rule.page.strip() or rule.message
        yield RulePage(code, rule.name, rule.message, rule.message, page, level, ("migration", rule.unit), severity)
