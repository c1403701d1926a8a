"""A report as one HTML page that needs nothing else: no network, no file beside it."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from amp_migrate.report.figures import Drawing, drawings
from amp_migrate.report.hunks import Comparison, Fold, Row
from amp_migrate.report.pages import TONES, VERDICTS, Migration, page
from amp_migrate.report.syntax import Piece, as_html, highlighted
from amp_migrate.report.text import parts, visible
from amp_migrate.verify.evidence import Evidence
from amp_migrate.verify.words import OTHER_NUMBERS, speed_in_words

_ADDRESS = re.compile(r"https?://[^\s()<>]*[^\s()<>.,;:]")
# So many unchanged lines are on the page in all; of more, only their number is told.
_FOLDED = 6_000


def render_html(migration: Migration, evidence: Evidence | None = None) -> str:
    """Return the page. Equal arguments give equal pages.

    Args:
        migration: what was done.
        evidence: what a verification of it found.

    Raises:
        UserError: the settings of ``amp-lint`` cannot be read.
    """
    content = page(migration, evidence)
    figures: list[Drawing] = []
    if content.evidence and content.measures:
        figures = drawings(content.evidence, content.measures)
    style, theme, script = (_asset(name) for name in ("report.css", "theme.js", "report.js"))
    template = _environment().from_string(_asset("report.html.j2"))
    return template.render(
        page=content,
        figures=figures,
        style=Markup(style),
        theme=Markup(theme),
        script=Markup(script),
        hashes=" ".join(f"'sha256-{_digest(text)}'" for text in (theme, script)),
        code=_Code(),
        tones=TONES,
        verdicts=VERDICTS,
        other_numbers=OTHER_NUMBERS,
        speeds=[speed_in_words(speed) for speed in evidence.speeds] if evidence else [],
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_seen
    )
    environment.filters["command"] = shlex.join
    environment.filters["prose"] = _prose
    environment.filters["paragraphs"] = _paragraphs
    environment.filters["sources"] = _sources
    return environment


def _seen(value: Any) -> Any:
    """What is put into the page: of others' texts, nothing that is hidden or cannot be encoded."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(name: str) -> str:
    return (files("amp_migrate.report") / "templates" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _prose(text: str) -> Markup:
    """A sentence in which backticks mark code."""
    return Markup("").join(
        Markup("<code>{}</code>").format(visible(part)) if is_code else escape(visible(part))
        for part, is_code in parts(text)
    )


def _paragraphs(text: str) -> Markup:
    """Paragraphs of such sentences."""
    found = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]
    return Markup("").join(Markup("<p>{}</p>").format(_prose(part)) for part in found)


def _sources(text: str) -> Markup:
    """A rule's sources, with their addresses as links."""
    text = " ".join(text.split())
    out, at = Markup(""), 0
    for match in _ADDRESS.finditer(text):
        link = Markup('<a href="{0}" rel="noreferrer">{0}</a>').format(match[0])
        out += _prose(text[at : match.start()]) + link
        at = match.end()
    return out + _prose(text[at:])


class _Code:
    """The lines of the changed files as HTML, each highlighted once."""

    def __init__(self) -> None:
        self._sides: dict[int, tuple[list[list[Piece]], list[list[Piece]]]] = {}
        self._left = _FOLDED

    def old(self, comparison: Comparison, row: Row) -> Markup:
        """The left line of a row; empty where there is none."""
        return as_html(self._lines(comparison)[0][row.old.number - 1], row.old.marks, "del") if row.old else Markup("")

    def new(self, comparison: Comparison, row: Row) -> Markup:
        """The right line of a row; empty where there is none."""
        return as_html(self._lines(comparison)[1][row.new.number - 1], row.new.marks, "ins") if row.new else Markup("")

    def take_room(self, fold: Fold) -> bool:
        """Count the lines of a fold to those on the page; false where there are too many already to put it there."""
        self._left -= len(fold.rows)
        return self._left >= 0

    def _lines(self, comparison: Comparison) -> tuple[list[list[Piece]], list[list[Piece]]]:
        # The comparisons are part of the page's content and live as long as this does.
        key = id(comparison)
        if key not in self._sides:
            self._sides[key] = highlighted(comparison.old), highlighted(comparison.new)
        return self._sides[key]
