"""What both commands share at the terminal: colour, messages and the progress bar on standard error, and raw output."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from amp_migrate.problems import Problem, UserError, shown

if TYPE_CHECKING:
    from rich.console import Console

# Fewer files get a line in place of a bar, after so many seconds and each time that these have passed.
_BAR_FROM = 8
_SILENT_FOR = 1.0


def wants_colour(choice: str, stream: TextIO) -> bool:
    """Decide on colour: ``--color`` first, then NO_COLOR and TERM, then whether anybody is watching."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def print_bytes(data: bytes) -> None:
    """Write to standard output.

    Raises:
        UserError: it cannot be written, for another reason than that nobody reads on.
    """
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # As in ``amp-migrate . | head``: nothing is wrong, and nothing more is wanted.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise UserError(f"standard output cannot be written: {error.strerror or error}") from error


def print_diff(lines: bytes, encoding: str, colour: str) -> None:
    """Write the diff of one file to standard output."""
    from amp_migrate.out.diff import coloured, for_terminal

    if sys.stdout.isatty():
        lines = for_terminal(lines, encoding).encode(sys.stdout.encoding or "utf-8", "replace")
    print_bytes(coloured(lines) if wants_colour(colour, sys.stdout) else lines)


@dataclass
class Messages:
    """Prints to standard error, for people.

    Attributes:
        colour: ``--color``.
        quiet: say nothing but errors.
        verbose: say more, and show the traceback of an internal error.
    """

    colour: str = "auto"
    quiet: bool = False
    verbose: bool = False
    _console: Console | None = field(default=None, init=False)

    @property
    def console(self) -> Console:
        """The console, made when first needed: importing rich takes longer than ``--help`` should."""
        if self._console is None:
            from rich.console import Console

            colour = wants_colour(self.colour, sys.stderr)
            self._console = Console(
                file=sys.stderr,
                force_terminal=colour,
                color_system="standard" if colour else None,
                soft_wrap=True,
                highlight=False,
                markup=False,
                emoji=False,
            )
        return self._console

    @contextmanager
    def progress(self, total: int) -> Iterator[Callable[[Path], None]]:
        """Yield the function to call before each file; it draws a bar where somebody watches."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda path: None
            return
        if total < _BAR_FROM:
            with _Clock(sys.stderr) as clock:
                yield clock.show
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task("", total=total, completed=-1)

            def advance(path: Path) -> None:
                bar.update(task, advance=1, description=shown(path))

            yield advance

    def line(self, *parts: str | tuple[str, str]) -> None:
        """Print one line of plain or (text, style) parts, unless quiet; on a terminal it is wrapped between words."""
        if not self.quiet:
            self._print(*parts)

    def code(self, *parts: str | tuple[str, str]) -> None:
        """Print a line that somebody may copy, whole, unless quiet."""
        if not self.quiet:
            self._print(*parts, wrap=False)

    def problem(self, problem: Problem) -> None:
        """Print why a file was left as it was."""
        self._print(("error: ", "bold red"), str(problem))
        if self.verbose and problem.detail:
            for line in problem.detail.rstrip().splitlines():
                self._print(f"    {line}", wrap=False)

    def _print(self, *parts: str | tuple[str, str], wrap: bool = True) -> None:
        # Control characters in a file's name or text are shown, lest they steer the terminal.
        styled = [(visible(part), "") if isinstance(part, str) else (visible(part[0]), part[1]) for part in parts]
        width = terminal_width(sys.stderr) if wrap else None
        for row in wrapped(styled, width) if width else [styled]:
            self._row(row)

    def _row(self, styled: Sequence[tuple[str, str]]) -> None:
        if not wants_colour(self.colour, sys.stderr):
            # Importing rich would take longer than many a run.
            print("".join(text for text, _ in styled), file=sys.stderr)
            return
        from rich.text import Text

        self.console.print(Text.assemble(*styled), soft_wrap=True)


class _Clock:
    """A line on a terminal with what is worked at and for how long, taken away at the end.

    A thread writes it, for the work itself says nothing; where all is done within a second nothing is written.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._path: Path | None = None
        self._since = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._written = False

    def __enter__(self) -> _Clock:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        if self._written:
            self._write("")

    def show(self, path: Path) -> None:
        """Note which file comes next."""
        self._path = path

    def _tick(self) -> None:
        while not self._over.wait(_SILENT_FOR):
            name = visible(shown(self._path)) if self._path is not None else "the files"
            text = f"analysing {name} ({time.monotonic() - self._since:.0f} s)"
            # A line that wraps could not be taken away again.
            self._write(text[: shutil.get_terminal_size().columns - 1])

    def _write(self, text: str) -> None:
        self._written = True
        with contextlib.suppress(OSError, ValueError):
            width = shutil.get_terminal_size().columns - 1
            # Blanks rather than an escape: any terminal understands them.
            self._stream.write(f"\r{text:<{width}}" if text else f"\r{'':<{width}}\r")
            self._stream.flush()


def terminal_width(stream: TextIO) -> int | None:
    """The columns of the terminal that a stream goes to; None where it goes elsewhere, and lines stay whole."""
    try:
        if not stream.isatty():
            return None
        return int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def wrapped(parts: Sequence[tuple[str, str]], width: int) -> list[list[tuple[str, str]]]:
    """Break (text, style) parts between words into rows of at most ``width`` columns.

    Further rows are indented by four more than the first. A word that is longer, as a path is, stays whole.
    """
    text = "".join(part for part, _ in parts)
    indent = len(text) - len(text.lstrip(" ")) + 4
    if len(text) <= width or width <= 2 * indent:
        return [list(parts)]
    rows: list[list[tuple[str, str]]] = [[]]
    column, fresh, last = 0, True, ""
    for part, style in parts:
        for word in re.findall(r" *[^ ]+| +$", part):
            between = word.startswith(" ") or last.endswith(" ")
            last = word
            if column + len(word) > width and between and not fresh:
                rows.append([(" " * indent, "")])
                column, fresh = indent, True
                word = word.lstrip(" ")
            if rows[-1] and rows[-1][-1][1] == style:
                word_before, _ = rows[-1].pop()
                rows[-1].append((word_before + word, style))
            else:
                rows[-1].append((word, style))
            column += len(word)
            fresh = fresh and not word.strip()
    return rows


def visible(text: str) -> str:
    """Return ``text`` with its control characters shown as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in " \t" else ascii(char)[1:-1] for char in text)


def plural(count: int, noun: str) -> str:
    """Return ``1 file`` or ``2 files``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
