"""Ranks other than 0 say nothing on the terminal, so that each line appears once."""

from __future__ import annotations

import builtins
import logging
import sys
from collections.abc import Iterable
from typing import Any

_original_print = builtins.print
_original_logging_level: int | None = None
_silent_stdout: SilentOutput | None = None


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

    Only the terminal is silenced: printing into a file or a ``StringIO`` of the script's own works as ever.
    """
    chosen = options.get("file")
    file = sys.stdout if chosen is None else chosen
    if isinstance(file, SilentOutput):
        file = file.stream
    if force:
        _original_print(*values, **{**options, "file": file})
    elif chosen is not None and not _is_terminal(file):
        _original_print(*values, **options)


def _is_terminal(file: Any) -> bool:
    hidden = None if _silent_stdout is None else _silent_stdout.stream
    return any(file is stream for stream in (hidden, sys.stdout, sys.stderr))


def silence(quiet: bool) -> None:
    """Lets ``print`` take ``force``; if ``quiet``, also silences it, ``sys.stdout`` and logging below WARNING."""
    global _original_print, _original_logging_level, _silent_stdout
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
    global _original_logging_level, _silent_stdout
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
