"""The lint rules, one a file, by family: numbers, types, the training step, processes.

What rules share stands in :mod:`amp_rules.checks.common`; no rule knows another. :func:`all_checks` finds the rules by
themselves.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from amp_rules.lint.check import Check
from amp_rules.lint.declarations import FAMILIES, refuse_if_elsewhere, refuse_if_twice, refuse_if_wrong


@lru_cache(maxsize=1)
def all_checks() -> tuple[Check, ...]:
    """Every rule, by code.

    Raises:
        WrongDeclarationError: a rule is declared wrongly.
    """
    refuse_if_elsewhere((item.name for item in pkgutil.iter_modules(__path__)), Path(__path__[0]))
    found = tuple(sorted(_checks(), key=lambda check: check.code))
    refuse_if_twice(found)
    return found


def _checks() -> Iterator[Check]:
    for family in FAMILIES.values():
        package = importlib.import_module(f"{__name__}.{family}")
        for item in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(item.name)
            for value in vars(module).values():
                if isinstance(value, type) and issubclass(value, Check) and value.__module__ == module.__name__:
                    refuse_if_wrong(value, Path(str(module.__file__)))
                    yield value()
