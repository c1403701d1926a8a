"""Apex's modules on a current torch, for scripts in which only the import is changed.

``from apex import amp`` becomes ``from amp_runtime.apex import amp``, ``import apex`` becomes
``import amp_runtime.apex as apex``, and ``from apex.parallel import ...`` becomes
``from amp_runtime.apex.parallel import ...``. Every subpackage is an attribute of this one, loaded at its first use.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

__all__ = sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
