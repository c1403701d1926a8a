"""Finding rewrites in the files of a folder, and refusing those that are declared wrongly.

What is checked here would otherwise show much later and far away: as a page without a section, as a rewrite that nobody
can ignore, or as edits in another order.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Generic, TypeVar

from amp_rules.plan.rule import EVERY_OTHER, Rule

if TYPE_CHECKING:
    from amp_rules.plan.context import Change
    from amp_rules.plan.declining import Declined
    from amp_rules.plan.report import Note

HEADINGS = ("What it does", "Why", "Before", "After", "When it declines", "Leaving it out", "Source")
"""What a page says, in this order."""

_LONGEST_TITLE = 80  # it stands in tables and in the headings of the site

C = TypeVar("C")


class Misdeclared(Exception):
    """A rewrite is not declared as it must be; the message is for its author."""


@dataclass(frozen=True)
class Rewrite(Generic[C]):
    """One file: its rule with its page, its edits, and what it has against them.

    Attributes:
        rule: the declaration.
        changes: yields the edits, given the context of its kind of rewrites.
        reasons: yields why its unit is declined, from rewrites that may.
        notes: yields what a reader has to know of what it did, or had no need to do; asked when all edits are made.
    """

    rule: Rule
    changes: Callable[[C], Iterable[Change]]
    reasons: Callable[[C], Iterable[Declined]] | None = None
    notes: Callable[[C], Iterable[Note]] | None = None


def load(*folders: ModuleType) -> tuple[Rewrite[C], ...]:
    """The rewrites in the files of some folders, in the order in which they come.

    A folder's ``CODES`` say how the codes of its rewrites begin, its ``UNITS`` to which units they belong; its
    ``WAYS``, if it has any, in which ways its interface can be handled; ``ASKS_REASONS``, whether its rewrites may
    decline their unit, and ``ASKS_NOTES``, whether they may have notes.

    Raises:
        Misdeclared: one of them is not declared as it must be.
    """
    found: list[Rewrite[C]] = [_rewrite(module, folder) for folder in folders for module in _modules(folder)]
    check_unique(rewrite.rule for rewrite in found)
    return tuple(_in_order(sorted(found, key=lambda rewrite: rewrite.rule.code)))


def _modules(folder: ModuleType) -> Iterator[ModuleType]:
    for item in pkgutil.iter_modules(folder.__path__):
        yield importlib.import_module(f"{folder.__name__}.{item.name}")


def _rewrite(module: ModuleType, folder: ModuleType) -> Rewrite[C]:
    rule = getattr(module, "RULE", None)
    if not isinstance(rule, Rule):
        raise Misdeclared(f"{module.__name__}: declare `RULE = Rule(code, name, message, unit)`")
    _check_rule(module, rule, folder)
    _check_page(module, rule)
    for name, needed in (("changes", True), ("reasons", False), ("notes", False)):
        function = getattr(module, name, None)
        if function is None and not needed:
            continue
        if not inspect.isfunction(function) or len(inspect.signature(function).parameters) != 1:
            raise Misdeclared(f"{module.__name__}: define `{name}(context)`, which yields what is found")
    if hasattr(module, "reasons") and not getattr(folder, "ASKS_REASONS", False):
        raise Misdeclared(
            f"{module.__name__}: `reasons` is not asked in {folder.__name__}; what stands against this unit is decided "
            "in amp_rules.plan"
        )
    if hasattr(module, "notes") and not getattr(folder, "ASKS_NOTES", False):
        raise Misdeclared(f"{module.__name__}: `notes` is not asked in {folder.__name__}")
    documented = replace(rule, page=module.__doc__ or "")
    return Rewrite(documented, module.changes, getattr(module, "reasons", None), getattr(module, "notes", None))


def _check_rule(module: ModuleType, rule: Rule, folder: ModuleType) -> None:
    codes: Sequence[str] = getattr(folder, "CODES", ())
    if not rule.code.startswith(tuple(codes)):
        raise Misdeclared(
            f"{module.__name__}: codes in {folder.__name__} begin with {' or '.join(codes)}, unlike {rule.code}"
        )
    units: Sequence[str] = getattr(folder, "UNITS", (rule.unit,))
    if rule.unit not in units:
        raise Misdeclared(f"{module.__name__}: a unit of {folder.__name__} is {' or '.join(units)}, not {rule.unit!r}")
    if rule.code[4] == "9":
        raise Misdeclared(f"{module.__name__}: {rule.code} would be a reason for declining, as all of x9x are")
    if rule.code[4] == "8":
        raise Misdeclared(f"{module.__name__}: {rule.code} would be a note, as all of x8x are")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name):
        raise Misdeclared(f"{module.__name__}: the name {rule.name!r} is not of the kind `scaled-backward`")
    if not rule.message.endswith(".") or "\n" in rule.message:
        raise Misdeclared(f"{module.__name__}: the message is one sentence with a full stop, not {rule.message!r}")
    ways: Sequence[str] = getattr(folder, "WAYS", ())
    wrong = [way for way in rule.ways if way not in ways]
    if wrong:
        raise Misdeclared(f"{module.__name__}: no way of {folder.__name__} is called {wrong[0]!r}")
    if ways and not rule.ways:
        raise Misdeclared(f"{module.__name__}: say in `ways=` which of {', '.join(ways)} it takes part in")


def _check_page(module: ModuleType, rule: Rule) -> None:
    if sys.flags.optimize > 1:
        return  # python -OO takes all docstrings away
    page = module.__doc__ or ""
    title = page.partition("\n")[0]
    if not title.endswith(".") or len(title) > _LONGEST_TITLE:
        raise Misdeclared(
            f"{module.__name__}: the docstring is the page of {rule.code}; its first line is one sentence of at most "
            f"{_LONGEST_TITLE} characters with a full stop"
        )
    parts = re.split(r"^## (.*)$", page, flags=re.MULTILINE)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    missing = [heading for heading in HEADINGS if not sections.get(heading, "").strip()]
    if missing:
        raise Misdeclared(f"{module.__name__}: the page of {rule.code} says nothing under `## {missing[0]}`")
    if parts[::2] != list(HEADINGS):
        raise Misdeclared(
            f"{module.__name__}: the page of {rule.code} has the headings {', '.join(HEADINGS)}, in order"
        )


def check_unique(rules: Iterable[Rule]) -> None:
    """Refuse two rewrites with one code or one name.

    Raises:
        Misdeclared: there are two.
    """
    known: dict[str, Rule] = {}
    for rule in rules:
        for value in (rule.code, rule.name):
            if value in known:
                other = known[value]
                raise Misdeclared(f"{rule.code} ({rule.name}) and {other.code} ({other.name}) share {value!r}")
            known[value] = rule


def _in_order(rewrites: list[Rewrite[C]]) -> Iterator[Rewrite[C]]:
    """By code, but each after those that its rule names."""
    codes = {rewrite.rule.code for rewrite in rewrites}
    for rule in (rewrite.rule for rewrite in rewrites):
        unknown = [code for code in rule.after if code != EVERY_OTHER and code not in codes]
        if unknown:
            raise Misdeclared(f"{rule.code} ({rule.name}) comes after {unknown[0]}, which there is not")
    waiting = list(rewrites)
    while waiting:
        ready = next((item for item in waiting if not _before(item.rule, waiting)), None)
        if ready is None:
            names = ", ".join(item.rule.code for item in waiting)
            raise Misdeclared(f"these wait for each other by what they say in `after=`: {names}")
        waiting.remove(ready)
        yield ready


def _before(rule: Rule, waiting: Iterable[Rewrite[C]]) -> list[Rule]:
    """Which of the waiting rewrites come before this one."""
    others = [item.rule for item in waiting if item.rule.code != rule.code]
    if rule.last:
        return [other for other in others if not other.last]
    if EVERY_OTHER in rule.after:
        return [other for other in others if other.code in rule.after or not (other.last or rule.code in other.after)]
    return [other for other in others if other.code in rule.after]
