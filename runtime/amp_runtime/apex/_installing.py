"""The drop-in under the name ``apex``, for programs whose imports cannot be edited: an installed library, say."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_OURS = __name__.rpartition(".")[0]
# Modules of Apex that are imported by a name of their own.
_EXTENSIONS = ("amp_C", "apex_C")
# Processes that multiprocessing spawns import the script anew; of this process they inherit `sys.path` alone.
_IMPORT_PATH = str(Path(__file__).with_name("_import_path"))


def install() -> None:
    """Put ``amp_runtime.apex`` in place under the names ``apex``, ``amp_C`` and ``apex_C``, for this process.

    After it ``import apex``, ``from apex import amp`` and ``from apex.parallel import ...`` give the modules of
    ``amp_runtime.apex``, in libraries that are imported later too, and in the processes that ``multiprocessing``
    starts. An installed Apex is not looked at. Calling it again has no effect.

    Raises:
        RuntimeError: another ``apex`` was imported before, so that a part of the program already uses that one.
    """
    for name in ("apex", *_EXTENSIONS):
        before = sys.modules.get(name)
        if before is not None and not before.__name__.startswith(_OURS) and not _stands_in(before):
            raise RuntimeError(
                f"amp_runtime.apex.install() came after `import {name}` ({getattr(before, '__file__', None)}); "
                "call it before anything that imports Apex"
            )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if _IMPORT_PATH not in sys.path:
        sys.path.insert(0, _IMPORT_PATH)


def _stands_in(module: ModuleType) -> bool:
    """Whether the module is a file of ``_import_path``, which is being imported in a spawned process."""
    return str(getattr(module, "__file__", "")).startswith(_IMPORT_PATH)


def _our_name(name: str) -> str | None:
    """The module of ours that a name of Apex's stands for, or None where the name is not of Apex."""
    if name in _EXTENSIONS:
        return f"{_OURS}.{name}"
    if name == "apex" or name.startswith("apex."):
        return _OURS + name.removeprefix("apex")
    return None


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``apex`` and what lies below it; comes before the finders that would find an installed one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        ours = _our_name(fullname)
        if ours is None:
            return None
        found = importlib.util.find_spec(ours)
        if found is None:
            # An ImportError as of any missing module: libraries catch it and go another way.
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: amp_runtime.apex stands for Apex here and has no {ours!r}",
                name=fullname,
            )
        return ModuleSpec(
            fullname, _Loader(ours), origin=found.origin, is_package=found.submodule_search_locations is not None
        )


class _Loader(importlib.abc.Loader):
    """Gives the module of ours itself, no second copy: scalers and patches are one state in a process."""

    def __init__(self, ours: str) -> None:
        self._ours = ours
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._ours)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just written Apex's name into the module's spec; relative imports go by our own.
        module.__spec__ = self._spec
