"""A report as the description of a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from amp_migrate.report.hunks import Comparison, Label
from amp_migrate.report.measures import Measures, RunRow
from amp_migrate.report.pages import VERDICTS, FilePart, Migration, Page, Remark, page
from amp_migrate.report.text import parts, visible
from amp_migrate.verify.evidence import Evidence
from amp_migrate.verify.words import OTHER_NUMBERS, speed_in_words

LIMIT = 65_536
"""GitHub takes no longer description."""

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#~&])")
_ICONS = {"proved": "✅", "disproved": "❌", "unproved": "➖"}
_LONGEST = 400
_NAMED = 3


@dataclass
class _Part:
    """A part of the text; of ``lines`` the last can be left out, ``head`` and ``tail`` stay."""

    head: str
    lines: list[str] = field(default_factory=list)
    tail: str = ""
    cut: int = 0

    def __str__(self) -> str:
        more = [f"\n… and {self.cut} more, which GitHub's limit on a description has no room for."] if self.cut else []
        return "\n".join(filter(None, [self.head, *self.lines, *more, self.tail]))

    @property
    def size(self) -> int:
        """How long the lines are that could be left out."""
        return sum(map(len, self.lines)) if len(self.lines) > 1 else 0


def render_markdown(migration: Migration, evidence: Evidence | None = None) -> str:
    """Return the report in GitHub's Markdown, short enough for a pull request. Equal arguments give equal texts.

    Raises:
        UserError: the settings of ``amp-lint`` cannot be read.
    """
    found = list(_parts(page(migration, evidence)))
    while len((text := "\n\n".join(map(str, found)) + "\n").encode()) >= LIMIT:
        longest = max(found, key=lambda part: part.size)
        if not longest.size:
            break
        kept = len(longest.lines) // 2
        longest.cut += len(longest.lines) - kept
        del longest.lines[kept:]
    return text


def _parts(content: Page) -> Iterator[_Part]:
    yield _Part(f"## {_text(content.title)}")
    yield _Part(_verdict(content))
    if content.reach:
        yield _Part(f"**{content.reach_label}** {_text(content.reach)}")
    tiles = [
        f"- {_text(tile.label)}: **{_text(tile.value)}**" + (f" ({_text(tile.detail)})" if tile.detail else "")
        for tile in content.tiles
    ]
    yield _Part("", tiles)
    yield from _scripts(content)
    if content.evidence and content.measures:
        yield from _verification(content, content.evidence, content.measures)
    yield from _changes(content)
    yield from _left(content)
    yield from _launches(content)
    yield from _findings(content)
    yield from _undo(content)
    yield _Part(f"<sub>amp-migrate {content.version} · {_text(content.level)}</sub>")


def _verdict(content: Page) -> str:
    """The outcome; first what keeps it from being proved."""
    named = "; ".join(_text(check.title) for check in content.in_the_way[:_NAMED])
    more = f"; and {len(content.in_the_way) - _NAMED} more" if len(content.in_the_way) > _NAMED else ""
    words = "Does not hold" if content.tone == "bad" else "Open"
    first = f"{words}: {named}{more}. " if named else ""
    return f"**{content.headline}.** {first}{_text(content.sentence)}"


def _scripts(content: Page) -> Iterator[_Part]:
    rows = [
        (_code(row.name), row.precision, row.distribution, str(row.files), str(row.edits), str(row.refusals))
        for row in content.scripts
    ]
    if rows:
        yield _table(("Script", "Precision", "Several processes", "Files", "Edits", "Left alone"), rows)
    notes = list(dict.fromkeys(f"- {_remark(note)}" for row in content.scripts for note in row.notes))
    if notes:
        yield _Part("Notes:\n", notes)


def _verification(content: Page, evidence: Evidence, measures: Measures) -> Iterator[_Part]:
    yield _Part(f"### Verification\n\nOn {_text(evidence.device)}, with the same seeds before and after.")
    rows = [
        (f"{_ICONS[check.verdict]} {VERDICTS[check.verdict]}", _text(check.title), _text(check.message))
        for check in content.checks
    ]
    if rows:
        yield _table(("Verdict", "Check", "What it rests on"), rows)
    notes = [*evidence.notes, *([] if measures.repeats else [OTHER_NUMBERS]), *map(speed_in_words, evidence.speeds)]
    if notes:
        yield _Part("", [f"- {_text(note)}" for note in notes])
    yield _table(("Run", "Steps", "Until", "Last loss", "Apart by", "Skipped"), map(_run, measures.rows))


def _run(row: RunRow) -> tuple[str, ...]:
    end = f"{row.until}: {row.run.error}" if row.run.error else row.until
    return (_text(row.run.name), row.count, _text(end), row.last, row.deviation, str(row.run.skipped))


def _changes(content: Page) -> Iterator[_Part]:
    if not content.files:
        return
    yield _Part("### What was changed")
    rules = [(_code(note.code), _text(note.title), str(count)) for note, count in content.rules]
    if rules:
        yield _table(("Rule", "What it does", "Edits"), rules)
    files = [
        (_code(file.name), str(len(file.hunks)), f"+{file.added} −{file.removed}", " ".join(map(_code, file.codes)))
        for file in content.files
    ]
    yield from _folded("Changed files", [_table(("File", "Hunks", "Lines", "Rules"), files)])
    edits = [
        f"- {_code(_place(file, found, label))} {_code(label.code)} {_text(label.message)}"
        for file in content.files
        for found in file.comparisons
        for hunk in found.hunks
        for label in hunk.labels
    ]
    if edits:
        yield from _folded("Every edit, with its line before", [_Part("", edits)])


def _place(file: FilePart, comparison: Comparison, label: Label) -> str:
    cell = f"cell {comparison.cell}:" if comparison.cell is not None else ""
    return f"{file.name}:{cell}{label.line}"


def _left(content: Page) -> Iterator[_Part]:
    if not content.left:
        return
    lines = [f"- {_remark(item)}" for item in content.left]
    yield _Part("### What was left alone\n", lines)
    recipes = [
        f"{_code(item.where)} {_code(item.code)}\n\n{_block(item.advice)}\n" for item in content.left if item.advice
    ]
    if recipes:
        yield from _folded("What to do by hand", [_Part("", recipes)])


def _launches(content: Page) -> Iterator[_Part]:
    if not content.launches:
        return
    yield _Part("### Commands to replace\n\nThese start one process; `N` is the number of processes.")
    rows = [(_code(item.where), _code(item.command), _code(item.replacement)) for item in content.launches]
    yield _table(("Where", "Now", "For several processes"), rows)


def _findings(content: Page) -> Iterator[_Part]:
    lint = content.lint
    if lint is None:
        return
    others = f" {len(lint.elsewhere)} more are on other lines of these files." if lint.elsewhere else ""
    if lint.changed:
        lines = [f"- {_remark(item)}" for item in lint.changed]
        yield _Part(f"### Lint findings in changed code\n\nAs code for {lint.mode}.{others}\n", lines)
    else:
        yield _Part(f"### Lint findings in changed code\n\n`amp-lint` found none, for {lint.mode}.{others}")


def _remark(item: Remark) -> str:
    code = f" {_code(item.code)}" if item.code else ""
    return f"{_code(item.where)} {item.kind}{code}: {_text(item.message)}"


def _undo(content: Page) -> Iterator[_Part]:
    if not content.files:
        return
    lines = ["- Revert this commit; nothing else was touched."]
    if any(row.precision == "migrated" for row in content.scripts):
        lines.insert(0, "- Without touching the code: `AMP_OPT_LEVEL=O0` trains in float32 as before.")
    lines += [f"- Where `-w` wrote it, before other edits: {_code(command)}" for command in content.undo]
    yield _Part("### How to undo\n", lines)


# ---- Markdown ------------------------------------------------------------------------------------------------


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> _Part:
    lines = [_row(row) for row in rows]
    return _Part(f"{_row(heads)}\n{_row(['---'] * len(heads))}", lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _folded(title: str, inner: Sequence[_Part]) -> Iterator[_Part]:
    yield _Part(f"<details>\n<summary>{title}</summary>")
    yield from inner
    yield _Part("</details>")


def _text(text: str) -> str:
    """A sentence in which backticks mark code, on one line, with nothing else that Markdown would take for its own."""
    text = _short(" ".join(text.split()))
    return "".join(_code(part) if is_code else _SPECIAL.sub(r"\\\1", visible(part)) for part, is_code in parts(text))


def _code(text: str) -> str:
    """Code within a line; it may hold backticks."""
    text = visible(_short(" ".join(text.split())))
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    space = " " if text[:1] == "`" or text[-1:] == "`" else ""
    return f"{fence}{space}{text}{space}{fence}"


def _block(text: str) -> str:
    """Code of several lines."""
    fence = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence}\n{visible(text).rstrip()}\n{fence}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
