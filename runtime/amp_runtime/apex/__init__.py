"""Apex's modules on a current torch, for scripts in which only the import is changed.

``from apex import amp`` becomes ``from amp_runtime.apex import amp``, ``import apex`` becomes
``import amp_runtime.apex as apex``, and ``from apex.parallel import ...`` becomes
``from amp_runtime.apex.parallel import ...``. Every subpackage is an attribute of this one, loaded at its first use.

Where the imports cannot be edited, because an installed library has them, ``amp_runtime.apex.install()`` puts this
package in place under the name ``apex``, and ``python -m amp_runtime.apex train.py ARGS`` runs a script so.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from amp_runtime.apex._installing import install

_MODULES = sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))

__all__ = [*_MODULES, "install"]


def __getattr__(name: str) -> ModuleType:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_MODULES)}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
