"""The rules of a report: what each does, why, and on whose word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import cleandoc

_SECTION = re.compile(r"^## (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class RuleNote:
    """One rule for a reader.

    Attributes:
        what: what it does, paragraphs in Markdown.
        why: the reason.
        source: the addresses, and books or papers without one, that it rests on.
    """

    code: str
    name: str
    title: str
    what: str
    why: str
    source: str


def notes_on(codes: Iterable[str]) -> dict[str, RuleNote]:
    """Return what is known of the rules with the given codes; a code that no rule has is left out."""
    known = _known()
    return {code: known[code] for code in sorted(set(codes)) if code in known}


@lru_cache(maxsize=1)
def _known() -> Mapping[str, RuleNote]:
    from amp_rules.rewrites import all_documented

    return {rule.code: _note(rule.code, rule.name, rule.message, rule.page) for rule in all_documented()}


def _note(code: str, name: str, title: str, page: str) -> RuleNote:
    _, *rest = _SECTION.split(cleandoc(page))
    found = {heading.strip(): text.strip() for heading, text in zip(rest[::2], rest[1::2], strict=True)}
    what = found.get("What it does") or found.get("What is refused") or ""
    return RuleNote(code, name, title, what, found.get("Why", ""), found.get("Source", ""))
