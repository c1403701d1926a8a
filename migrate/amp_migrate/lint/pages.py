"""``--explain`` and ``--list-rules``: what the rules are about."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from amp_migrate.lint.catalogue import RuleInfo
from amp_migrate.problems import UserError


def explain(wanted: Sequence[str], rules: Sequence[RuleInfo]) -> str:
    """Return the pages of the rules that are named by code or name, those of amp-migrate included, as markdown.

    Raises:
        UserError: there is no such rule.
    """
    pages = {rule.code: _page(rule) for rule in rules}
    names = {rule.name: rule.code for rule in rules}
    missing = [item for item in wanted if item.upper() not in pages and item.lower() not in names]
    if missing:
        for code, name, page in _rewrites():
            pages[code] = page
            names.setdefault(name, code)
    found = []
    for item in wanted:
        code = item.upper() if item.upper() in pages else names.get(item.lower(), "")
        if not code:
            close = difflib.get_close_matches(item.upper(), pages, cutoff=0.75)
            close = close or difflib.get_close_matches(item.lower(), names, cutoff=0.5)
            hint = f"did you mean {' or '.join(close)}?" if close else "--list-rules shows all rules"
            raise UserError(f"unknown rule {item!r}; {hint}")
        found.append(pages[code])
    return "\n".join(found)


def rules_table(rules: Iterable[RuleInfo]) -> str:
    """Return the rules as a table, one a line."""
    rows = [("code", "name", "severity", "fix", "preview", "modes")]
    for rule in rules:
        rows.append(
            (
                rule.code,
                rule.name,
                rule.severity,
                rule.fix_safety or "-",
                "preview" if rule.preview else "-",
                rule.modes_text,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines) + "\n"


def rules_json(rules: Iterable[RuleInfo]) -> str:
    """Return the rules as a JSON list."""
    return json.dumps([asdict(rule) for rule in rules], indent=1) + "\n"


def _page(rule: RuleInfo) -> str:
    """Return a rule's page with a head of what is known about it."""
    facts = [f"severity: {rule.severity}", f"modes: {rule.modes_text}"]
    if rule.fix_title:
        facts.append(f"fix ({rule.fix_safety}): {rule.fix_title}")
    if rule.preview:
        facts.append("in preview: --preview or --select asks it")
    parts = [f"# {rule.code} {rule.name}", rule.page or rule.message, "\n".join(f"- {fact}" for fact in facts)]
    return "\n\n".join(parts) + "\n"


def _rewrites() -> Iterable[tuple[str, str, str]]:
    """Yield code, name and page of the rewrites of amp-migrate, and of its reasons for declining."""
    from amp_rules.rewrites import all_documented

    for rule in all_documented():
        page = "\n\n".join([f"# {rule.code} {rule.name}", rule.page.strip() or rule.message])
        yield rule.code, rule.name, page + "\n"
