"""The rewrites, one a file.

A rewrite has a ``RULE`` and a function ``changes(context)`` that yields its edits; this package finds the files by
itself. The module's docstring is the rule's public page.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from amp_rules.rule import Rule

if TYPE_CHECKING:
    from amp_rules.context import Change, Context

Rewrite = Callable[["Context"], "Iterable[Change]"]


@lru_cache(maxsize=1)
def _found() -> tuple[tuple[Rule, Rewrite], ...]:
    rewrites = []
    for item in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{item.name}")
        rewrites.append((replace(module.RULE, page=module.__doc__ or ""), module.changes))
    return tuple(sorted(rewrites, key=lambda pair: pair[0].code))


def all_rules() -> list[Rule]:
    """Every rewrite's rule, by code."""
    return [rule for rule, _ in _found()]


def all_changes(context: Context) -> Iterator[Change]:
    """Every edit that the decisions in ``context`` ask for."""
    for _, rewrite in _found():
        yield from rewrite(context)
