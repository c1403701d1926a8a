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
from types import ModuleType
from typing import TYPE_CHECKING

from amp_rules.rule import Rule

if TYPE_CHECKING:
    from amp_rules.context import Change, Context
    from amp_rules.modern.old import Old

Rewrite = Callable[["Context"], "Iterable[Change]"]


@lru_cache(maxsize=1)
def _found() -> tuple[tuple[Rule, Rewrite], ...]:
    rewrites = [
        (_documented(module), module.changes)
        for module in _modules(__name__, __path__)
        if not hasattr(module, "__path__")
    ]
    return tuple(sorted(rewrites, key=lambda pair: pair[0].code))


def _modules(package: str, path: Iterable[str]) -> Iterator[ModuleType]:
    for item in pkgutil.iter_modules(path):
        yield importlib.import_module(f"{package}.{item.name}")


def _documented(module: ModuleType) -> Rule:
    rule: Rule = module.RULE
    return replace(rule, page=module.__doc__ or "")


def all_rules() -> list[Rule]:
    """Every rewrite's rule, by code; those for older interfaces, which work file by file, included."""
    from amp_rules.codemods import legacy

    old = [_documented(module) for module in _modules(legacy.__name__, legacy.__path__)]
    found = [rule for rewrites in (_found(), _modern()) for rule, _ in rewrites]
    return sorted([*found, *old], key=lambda rule: rule.code)


def all_documented() -> list[Rule]:
    """All that has a page: the rewrites, then the reasons for which something is left alone."""
    from amp_rules.planning.reasons import all_reasons

    return [*all_rules(), *all_reasons()]


def modern_rewrites() -> list[Callable[[Old], Iterable[Change]]]:
    """The rewrites of old PyTorch, by code; each sees the whole program."""
    return [rewrite for _, rewrite in _modern()]


@lru_cache(maxsize=1)
def _modern() -> tuple[tuple[Rule, Callable[[Old], Iterable[Change]]], ...]:
    from amp_rules.codemods import modern

    rewrites = [(_documented(module), module.changes) for module in _modules(modern.__name__, modern.__path__)]
    return tuple(sorted(rewrites, key=lambda pair: pair[0].code))


def all_changes(context: Context) -> Iterator[Change]:
    """Every edit that the decisions in ``context`` ask for."""
    for _, rewrite in _found():
        yield from rewrite(context)
