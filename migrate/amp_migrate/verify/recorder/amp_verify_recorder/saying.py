"""What the script says on standard output, and where; on a rank that is kept silent, what it would say."""

from __future__ import annotations

import builtins
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from . import imports
from .record import Record, guarded

# What is said beyond this has no line; the output itself is there whole.
_LARGEST = 4_000_000
# Apex, and what takes its place: its words about a level are none of the script's.
_APEX = ("apex", "amp_runtime.apex")


def watch(record: Record) -> None:
    """Note every line that is written to standard output."""
    said = _Said(record)
    stream = sys.stdout
    if stream is not None and hasattr(stream, "__dict__"):
        # The stream stays the object that it was.
        stream.write = said.noting(stream.write, silent=False)  # type: ignore[method-assign]
    record.finishers.append(said.rest)
    imports.after("amp_runtime._distributed.output", said.watch_runtime)
    if os.environ.get("AMP_VERIFY_NATIVE", "").startswith("leveled") and os.environ.get("RANK", "0") != "0":
        builtins.open = said.following(builtins.open)


class _Said:
    """The lines of this process; one that is not ended yet is kept, with the place where it began."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._begun: dict[bool, tuple[str, str, bool]] = {}
        self._size = 0

    def noting(self, write: Callable[[str], int], *, silent: bool) -> Callable[[str], int]:
        """A stream's ``write`` that notes what is written."""

        @functools.wraps(write)
        def written(text: str) -> int:
            count = write(text)
            self._note(text, silent, sys._getframe(1))
            return count

        return written

    def watch_runtime(self, module: Any) -> None:
        """Follow what the runtime keeps back on ranks other than 0."""
        silent_print = module._silent_print

        @functools.wraps(silent_print)
        def kept_back(*values: Any, force: bool = False, **options: Any) -> None:
            silent_print(*values, force=force, **options)
            if not force and options.get("file") in (None, sys.stdout):
                self._keep_back(values, options, sys._getframe(1))

        module._silent_print = kept_back
        output, write = module.SilentOutput, module.SilentOutput.write

        @functools.wraps(write)
        def discarded(stream: Any, text: str) -> int:
            if stream.quiet:
                self._note(text, True, sys._getframe(1))
            return int(write(stream, text))

        output.write = discarded

    def following(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``open``, whose stream to nowhere notes what is said while it stands for standard output."""

        @functools.wraps(original)
        def opened(file: Any, *args: Any, **kwargs: Any) -> Any:
            stream = original(file, *args, **kwargs)
            if file == os.devnull and hasattr(stream, "__dict__"):
                self._follow(stream)
            return stream

        return opened

    def _follow(self, stream: Any) -> None:
        write = stream.write

        @functools.wraps(write)
        def discarded(text: str) -> int:
            if sys.stdout is stream:
                self._note(text, True, sys._getframe(1))
            return int(write(text))

        stream.write = discarded

    @guarded
    def _keep_back(self, values: tuple[Any, ...], options: dict[str, Any], frame: Any) -> None:
        separator, end = (options.get(name) for name in ("sep", "end"))
        words = (" " if separator is None else separator).join(map(_in_words, values))
        self._note(words + ("\n" if end is None else end), True, frame)

    @guarded
    def _note(self, text: str, silent: bool, frame: Any) -> None:
        if not self._record.active or self._size > _LARGEST:
            return
        self._size += len(text)
        before, site, by_apex = self._begun.pop(silent, ("", "", False))
        if not before:
            site, by_apex = self._record.sites.saying(frame), self._record.sites.is_said_by(_APEX, frame)
        *lines, rest = (before + text).split("\n")
        for line in lines:
            self._add(line, site, silent, by_apex)
        if rest:
            self._begun[silent] = (rest, site, by_apex)

    def _add(self, line: str, site: str, silent: bool, by_apex: bool) -> None:
        facts: dict[str, Any] = {"said": line, "site": site, "before": self._record.backwards}
        if silent:
            facts["silent"] = True
        if by_apex:
            facts["by_apex"] = True
        self._record.add(**facts)

    def rest(self) -> Iterator[tuple[str, Any]]:
        """Add what has no end of its line."""
        for silent, (line, site, by_apex) in self._begun.items():
            self._add(line, site, silent, by_apex)
        self._begun.clear()
        yield from ()


def _in_words(value: Any) -> str:
    """What ``print`` would make of it; of objects whose own words may do anything, their class."""
    if isinstance(value, (str, int, float, complex, type(None))):
        return str(value)
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.Tensor and value.numel() == 1 and value.device.type == "cpu":
        return str(value)
    return type(value).__name__
