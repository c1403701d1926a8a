"""A diff for two columns: lines side by side, the words that differ, and the rules that each hunk comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from amp_rules.plan.report import Edit

from amp_migrate.out.diff import CONTEXT, ChangedLines, changes, grouped

LINE_END = re.compile(r"\r\n|\r|\n")
_WORD = re.compile(r"\w+|.", re.DOTALL)
# Lines less alike than this are two different lines, and not one that was changed.
_ALIKE = 0.5
# So many pairs of lines are compared within a moment.
_PAIRS = 4_000

Span = tuple[int, int]


@dataclass(frozen=True)
class Line:
    """One line of a file.

    Attributes:
        number: from 1.
        marks: the ranges of columns, from 0, in which it differs from its counterpart.
    """

    number: int
    marks: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Row:
    """A line of each side; None where one has no counterpart."""

    old: Line | None
    new: Line | None


@dataclass(frozen=True)
class Block:
    """Rows that follow each other and are either all changed or all the same."""

    changed: bool
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Label:
    """A rule that had part in a hunk: what it did there, and at which line of the original."""

    code: str
    name: str
    message: str
    line: int


@dataclass(frozen=True)
class Hunk:
    """Changes that are near each other, with some lines around them."""

    blocks: tuple[Block, ...]
    labels: tuple[Label, ...] = ()

    @property
    def first(self) -> int:
        """The first changed line, of the new text or else of the old."""
        rows = [row for block in self.blocks if block.changed for row in block.rows]
        return next((row.new.number for row in rows if row.new), 0) or next(row.old.number for row in rows if row.old)


@dataclass(frozen=True)
class Fold:
    """Unchanged lines between hunks."""

    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Comparison:
    """A text before and after.

    Attributes:
        old: the lines before.
        new: the lines after.
        cell: of a notebook, the number of the cell that this is.
        parts: folds and hunks, from the first line to the last.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    cell: int | None = None
    parts: tuple[Fold | Hunk, ...] = field(default=(), repr=False)

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        """The parts that changed."""
        return tuple(part for part in self.parts if isinstance(part, Hunk))

    @property
    def added(self) -> frozenset[int]:
        """Numbers of the new lines that are not in the old text as they are."""
        return frozenset(row.new.number for row in self._changed if row.new)

    @property
    def removed(self) -> frozenset[int]:
        """Numbers of the old lines that are not in the new text as they were."""
        return frozenset(row.old.number for row in self._changed if row.old)

    @property
    def _changed(self) -> Iterator[Row]:
        for hunk in self.hunks:
            for block in hunk.blocks:
                if block.changed:
                    yield from block.rows


def compare(before: str, after: str, edits: Sequence[Edit], cell: int | None = None) -> Comparison:
    """Set two versions of a text side by side.

    Args:
        before: the original.
        after: the changed text.
        edits: those of this text, with places in the original.
        cell: the number of the notebook's cell that the text is.
    """
    old, new = _lines(before), _lines(after)
    found = list(changes(old, new))
    labels = labelled(found, edits)
    parts: list[Fold | Hunk] = []
    at, shift = 0, 0
    for group in grouped(found):
        start = max(at, group[0].old_start - CONTEXT)
        if start > at:
            parts.append(Fold(_same(at, start, shift)))
        blocks: list[Block] = []
        at = start
        for change in group:
            if change.old_start > at:
                blocks.append(Block(False, _same(at, change.old_start, shift)))
            blocks.append(Block(True, tuple(_changed(old, new, change))))
            at, shift = change.old_stop, change.new_stop - change.old_stop
        end = min(len(old), at + CONTEXT)
        if end > at:
            blocks.append(Block(False, _same(at, end, shift)))
        at = end
        own = sorted((label for change in group for label in labels[change]), key=lambda item: (item.line, item.code))
        once = {(label.code, label.message): label for label in reversed(own)}
        parts.append(Hunk(tuple(blocks), tuple(reversed(once.values()))))
    if at < len(old):
        parts.append(Fold(_same(at, len(old), shift)))
    return Comparison(tuple(old), tuple(new), cell, tuple(parts))


def _lines(text: str) -> list[str]:
    lines = LINE_END.split(text)
    return lines if lines[-1] else lines[:-1]


def _same(start: int, stop: int, shift: int) -> tuple[Row, ...]:
    return tuple(Row(Line(number), Line(number + shift)) for number in range(start + 1, stop + 1))


# ---- which rule made which change ------------------------------------------------------------------------------


def labelled(found: Sequence[ChangedLines], edits: Sequence[Edit]) -> dict[ChangedLines, list[Label]]:
    """The rules behind each change: of an edit's changes that which is nearest to its beginning, and none is left."""
    labels: dict[ChangedLines, list[Label]] = {change: [] for change in found}
    for edit in edits if found else ():
        first, last = edit.span.start.line, edit.span.end.line
        nearest = min(found, key=lambda change: (_distance(change, first, last), _distance(change, first, first)))
        labels[nearest].append(_label(edit))
    for change, own in labels.items():
        if edits and not own:
            starts = [(_distance(change, edit.span.start.line, edit.span.start.line), edit) for edit in edits]
            least = min(distance for distance, _ in starts)
            own += [_label(edit) for distance, edit in starts if distance == least]
    return labels


def _label(edit: Edit) -> Label:
    return Label(edit.code, edit.name, edit.message, edit.span.start.line)


def _distance(change: ChangedLines, first: int, last: int) -> int:
    """How many lines lie between a change and the lines of an edit."""
    if change.old_stop < first:
        distance = first - change.old_stop
    elif change.old_start >= last:
        distance = change.old_start - last + 1
    else:
        return 0
    # What is inserted stands between two lines, often with a blank line before or after it.
    return distance if change.old_start < change.old_stop else max(0, distance - 2)


# ---- which line became which -----------------------------------------------------------------------------------


def _changed(old: Sequence[str], new: Sequence[str], change: ChangedLines) -> Iterator[Row]:
    """Pair the lines that are alike; what lies between two pairs stands side by side, unmarked."""
    before, after = old[change.old_start : change.old_stop], new[change.new_start : change.new_stop]
    left, right = 0, 0
    for i, j in [*_pairs(before, after), (len(before), len(after))]:
        for offset in range(max(i - left, j - right)):
            yield Row(
                Line(change.old_start + left + offset + 1) if left + offset < i else None,
                Line(change.new_start + right + offset + 1) if right + offset < j else None,
            )
        if i < len(before):
            old_marks, new_marks = _marks(before[i], after[j])
            yield Row(Line(change.old_start + i + 1, old_marks), Line(change.new_start + j + 1, new_marks))
        left, right = i + 1, j + 1


def _pairs(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """The pairs of lines, in order, that are together most alike."""
    rows, columns = len(before), len(after)
    if rows * columns > _PAIRS:
        return [(index, index) for index in range(min(rows, columns)) if _alike(before[index], after[index])]
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    alike = [[_alike(line, other) for other in after] for line in before]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            paired = alike[i][j] + best[i + 1][j + 1] if alike[i][j] else 0.0
            best[i][j] = max(paired, best[i + 1][j], best[i][j + 1])
    pairs, i, j = [], 0, 0
    while i < rows and j < columns:
        if alike[i][j] and best[i][j] == alike[i][j] + best[i + 1][j + 1]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _alike(line: str, other: str) -> float:
    """How much two lines have in common besides their indentation; 0.0 if too little."""
    line, other = line.strip(), other.strip()
    if not line or not other:
        return 0.0
    matcher = SequenceMatcher(None, line, other, autojunk=False)
    ratio = matcher.ratio() if matcher.quick_ratio() >= _ALIKE else 0.0
    # A line that is taken up whole into a longer one is that line still.
    return max(ratio, _ALIKE) if ratio >= _ALIKE or line in other or other in line else 0.0


def _marks(line: str, other: str) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """The columns in which two lines differ, word by word."""
    words, others = _WORD.findall(line), _WORD.findall(other)
    matcher = SequenceMatcher(None, words, others, autojunk=False)
    left: list[Span] = []
    right: list[Span] = []
    for tag, i, i_end, j, j_end in matcher.get_opcodes():
        if tag != "equal":
            left.append((len("".join(words[:i])), len("".join(words[:i_end]))))
            right.append((len("".join(others[:j])), len("".join(others[:j_end]))))
    return tuple(span for span in left if span[0] < span[1]), tuple(span for span in right if span[0] < span[1])
