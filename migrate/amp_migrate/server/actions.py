"""Fixes and suppressions as edits of a text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

from amp_rules.source.spans import Position, Span
from amp_rules.source.text import SourceFile, parse_source

from amp_migrate.lint.diagnostics import Diagnostic, Replacement
from amp_migrate.lint.fixing import carried_out
from amp_migrate.lint.patches import apply_patch
from amp_migrate.lint.suppress import suppression_of
from amp_migrate.server.found import Found
from amp_migrate.server.projects import WarmLinter, as_bytes

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def fix_of(path: Path, found: Found, item: Diagnostic) -> tuple[Replacement, ...]:
    """Return the edits of one fix.

    Raises:
        Exception: it cannot be carried out, or the text would be no Python after it.
    """
    if item.patch is not None:
        text = apply_patch(found.text, item.patch)
        parse_source(SourceFile(path, text.encode("utf-8", "surrogatepass"), text, "utf-8"))
        return item.patch
    data, encoding = as_bytes(found.text)
    after, _ = carried_out(path, data, [item])
    return tuple(edits_between(found.text, after.decode(encoding)))


def all_safe_fixes(path: Path, found: Found, linter: WarmLinter) -> tuple[Replacement, ...]:
    """Return the edits of everything that can be mended safely."""
    return tuple(edits_between(found.text, linter.mended(path, found)))


def suppression(found: Found, item: Diagnostic) -> tuple[Replacement, ...]:
    """Return the edit that suppresses a finding; none where no comment can."""
    edit = suppression_of(found.text, item.finding)
    return (edit,) if edit else ()


def edits_between(before: str, after: str) -> Iterator[Replacement]:
    """Yield the lines that differ; the cursor and the marks of the others stay where they are."""
    old, new = _LINE.findall(before), _LINE.findall(after)
    for kind, first, last, new_first, new_last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            span = Span(Position(first + 1, 1), Position(last + 1, 1))
            yield Replacement(span, "".join(new[new_first:new_last]))
