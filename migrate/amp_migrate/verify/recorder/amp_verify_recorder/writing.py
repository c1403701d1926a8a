"""The files of the project that the script opens for writing, and where."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from . import imports
from .record import Record, guarded

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC


def watch(record: Record) -> None:
    """Note every file that is opened for writing or renamed to its name."""
    opened = _Opened(record)
    sys.addaudithook(opened.heard)
    imports.after("torch", opened.watch_torch)
    imports.after("safetensors.torch", opened.watch_safetensors)


class _Opened:
    """Each file and line once."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._known: set[tuple[str, str]] = set()
        self._inside = False
        self._own = os.path.join(os.path.realpath(record.folder), "")

    def heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Called by the interpreter for every event that it tells of."""
        if event not in ("open", "os.rename") or self._inside or not self._record.active:
            return
        self._inside = True
        try:
            self._hear(event, arguments)
        finally:
            self._inside = False

    @guarded
    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & _WRITES)
            if writes:
                adds = "a" in mode if isinstance(mode, str) else bool(flags & os.O_APPEND)
                self._note(path, adds=adds)
        else:
            self._note(arguments[1])

    def watch_torch(self, torch: Any) -> None:
        """Follow ``torch.save``, which opens its file without telling the interpreter."""
        torch.save = self._following(torch.save, 1, "f")

    def watch_safetensors(self, module: Any) -> None:
        """Follow those of safetensors, too."""
        for name in ("save_file", "save_model"):
            if hasattr(module, name):
                setattr(module, name, self._following(getattr(module, name), 1, "filename"))

    def _following(self, save: Callable[..., Any], place: int, name: str) -> Callable[..., Any]:
        @functools.wraps(save)
        def saved(*arguments: Any, **options: Any) -> Any:
            if self._record.active:
                self._note_quietly(arguments[place] if len(arguments) > place else options.get(name))
            return save(*arguments, **options)

        return saved

    @guarded
    def _note_quietly(self, path: Any) -> None:
        self._note(path)

    def _note(self, path: Any, *, adds: bool = False) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        name = os.path.realpath(os.fsdecode(path))
        if not name.startswith(self._record.root) or name.startswith(self._own):
            return
        site = self._record.sites.saying(sys._getframe(1))
        name = name[len(self._record.root) :]
        if (name, site) not in self._known:
            self._known.add((name, site))
            self._record.add(opened=name, site=site, before=self._record.backwards, adds=adds)
