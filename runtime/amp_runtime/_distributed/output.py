"""Ranks other than 0 say nothing on standard output, and a warning of several is shown once: each line appears once.

What a rank writes to standard error is shown, for its errors are there.
"""

from __future__ import annotations

import builtins
import hashlib
import logging
import os
import sys
import warnings
from collections.abc import Iterable
from typing import Any

_original_print = builtins.print
_original_logging_level: int | None = None
_silent_stdout: SilentOutput | None = None
_show_warning: _ShownOnce | None = None


class SilentOutput:
    """Stands in for ``sys.stdout``: discards what is written, and passes every other attribute on.

    Objects of the script that hold it for good, such as a tee, write to the terminal again once ``quiet`` is
    false.

    Attributes:
        stream: the real output.
        quiet: whether writes are discarded.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.quiet = True

    def write(self, text: str) -> int:
        """Discards ``text``; returns its length, as a file does."""
        return len(text) if self.quiet else self.stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Discards ``lines``."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if "stream" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.stream, name)


def _print_with_force(*values: Any, force: bool = False, **options: Any) -> None:
    """``print`` on rank 0 of several, which takes ``force`` as well so that all ranks run the same line."""
    _original_print(*values, **options)


def _silent_print(*values: Any, force: bool = False, **options: Any) -> None:
    """Stands in for ``print`` on ranks other than 0; ``print(..., force=True)`` still prints.

    Only standard output is silenced: printing to standard error, into a file or a ``StringIO`` works as ever.
    """
    chosen = options.get("file")
    file = sys.stdout if chosen is None else chosen
    if isinstance(file, SilentOutput):
        file = file.stream
    if force:
        _original_print(*values, **{**options, "file": file})
    elif chosen is not None and not _is_stdout(file):
        _original_print(*values, **options)


def _is_stdout(file: Any) -> bool:
    return file is sys.stdout or (_silent_stdout is not None and file is _silent_stdout.stream)


class _ShownOnce:
    """Stands in for ``warnings.showwarning``: of the ranks that give the same warning, the first shows it.

    Args:
        show: what shows it.
        store: where the ranks say which ones they have shown.
    """

    def __init__(self, show: Any, store: Any) -> None:
        self.show = show
        self._store = store
        self._process = os.getpid()
        self._own: dict[str, bool] = {}

    def __call__(self, message: Any, category: Any, filename: str, lineno: int, *more: Any, **named: Any) -> None:
        text = f"{category.__name__} {filename} {lineno} {message}"
        if text not in self._own:
            self._own[text] = self._is_first(hashlib.sha256(text.encode()).hexdigest())
        if self._own[text]:
            self.show(message, category, filename, lineno, *more, **named)

    def _is_first(self, name: str) -> bool:
        if os.getpid() != self._process:
            return True  # a worker, which must not speak over the connection that it has a copy of
        try:
            return bool(self._store.add(f"amp/shown/{name}", 1) == 1)
        except RuntimeError:  # the process that kept the store has ended
            return True


def silence(quiet: bool, store: Any = None) -> None:
    """Lets ``print`` take ``force``, and a warning be shown by one rank of those that meet at ``store``.

    If ``quiet``, it also silences ``print`` to standard output, ``sys.stdout`` and logging below WARNING.
    """
    global _original_print, _original_logging_level, _silent_stdout, _show_warning
    if store is not None:
        warnings.showwarning = _show_warning = _ShownOnce(warnings.showwarning, store)
    _original_print = builtins.print
    builtins.print = _silent_print if quiet else _print_with_force
    if not quiet:
        return
    if sys.stdout is not None:
        sys.stdout = _silent_stdout = SilentOutput(sys.stdout)
    _original_logging_level = logging.root.manager.disable
    logging.disable(max(logging.INFO, _original_logging_level))


def restore() -> None:
    """Undoes :func:`silence`, except where the script has put something of its own in its place."""
    global _original_logging_level, _silent_stdout, _show_warning
    if _show_warning is not None and warnings.showwarning is _show_warning:
        warnings.showwarning = _show_warning.show
    _show_warning = None
    if builtins.print in (_silent_print, _print_with_force):
        builtins.print = _original_print
    if _silent_stdout is not None:
        _silent_stdout.quiet = False
        if sys.stdout is _silent_stdout:
            sys.stdout = _silent_stdout.stream
        _silent_stdout = None
    if _original_logging_level is not None:
        logging.disable(_original_logging_level)
        _original_logging_level = None
