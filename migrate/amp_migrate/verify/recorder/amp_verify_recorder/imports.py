"""Calling a function when a module has been imported, whoever imports it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

INSTALLED = {"site-packages", "dist-packages"}
_from_the_start = set(sys.modules)
_waiting: dict[str, list[Callable[[Any], None]]] = {}


def after(name: str, call: Callable[[Any], None]) -> None:
    """Call ``call(module)`` as soon as the module is there whole: at once, if it is already."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _quietly(call, module)
        return
    _waiting.setdefault(name, []).append(call)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def installed() -> list[str]:
    """The modules of installed packages that were imported since the recorder began, in that order."""
    new = [(name, module) for name, module in list(sys.modules.items()) if name not in _from_the_start]
    return [name for name, module in new if _is_installed(name, module)]


def _is_installed(name: str, module: Any) -> bool:
    path, spec = getattr(module, "__file__", None), getattr(module, "__spec__", None)
    # Some put an object in a module's place, or a module under two names.
    if not isinstance(path, str) or getattr(spec, "name", None) != name:
        return False
    return not INSTALLED.isdisjoint(path.split(os.sep))


def _quietly(call: Callable[[Any], None], module: ModuleType) -> None:
    try:
        call(module)
    except Exception as error:  # a torch that is different costs a fact, not the script
        from .record import complain

        complain(f"{module.__name__}: {type(error).__name__}: {error}")


class _Finder(MetaPathFinder):
    """Finds nothing itself: it lets the others find, and waits until the module is executed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec that the next finder has for one of the modules waited for."""
        if name not in _waiting:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                _extend(spec, name)
                return spec
        return None


def _extend(spec: ModuleSpec, name: str) -> None:
    """Let the spec's loader call what waits for the module when it has executed it."""
    loader: Any = spec.loader
    if loader is None or not hasattr(loader, "exec_module"):
        return
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        for call in _waiting.pop(name, ()):
            _quietly(call, module)

    # The loader stays the object that it was: inspect and importlib.resources ask it for the source.
    loader.exec_module = exec_module
