"""What people read of a verification: its progress on standard error, the result on standard output."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from amp_migrate.out.terminal import Messages, plural, visible, wants_colour
from amp_migrate.verify.evidence import IN_WORDS, Evidence, Measured, Verdict
from amp_migrate.verify.traces import Trace
from amp_migrate.verify.watching import Going
from amp_migrate.verify.words import (
    OTHER_NUMBERS,
    VARIES,
    is_counted,
    memory_in_words,
    reach,
    reach_label,
    repeats,
    speed_in_words,
    until,
    worst_last,
)

_SIGNS: dict[Verdict, tuple[str, str, str]] = {
    "proved": ("✓", "ok", "green"),
    "disproved": ("✗", "FAIL", "red"),
    "unproved": ("?", "??", "yellow"),
}
_WIDTH = 110
_BAR = 24
_REDRAWN = 0.2
_STYLES = {"green": "32", "red": "31", "yellow": "33", "bold": "1", "dim": "2"}


@dataclass
class Progress(Messages):
    """Says which run is being made: in a bar where somebody watches, else in one line for each that is over."""

    _bar: Any = field(default=None, init=False)
    _task: Any = field(default=None, init=False)
    _name: str = field(default="", init=False)
    _shown: float = field(default=0.0, init=False)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show what is going on until the end of the block."""
        if self.quiet or not sys.stderr.isatty():
            yield
            return
        from rich import progress

        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(_BAR),
            progress.TextColumn("{task.fields[words]}", markup=False),
        )
        self._bar = progress.Progress(*columns, console=self.console, transient=True)
        self._task = self._bar.add_task("", total=None, words="")
        try:
            with self._bar:
                yield
        finally:
            self._bar = None

    def begin(self, name: str) -> None:
        """A run is about to start."""
        self._name, self._shown = name, -1.0
        self.tick(Going(0.0))

    def tick(self, going: Going) -> None:
        """It has come so far."""
        if self._bar is not None and not 0 <= going.seconds - self._shown < _REDRAWN:
            self._shown = going.seconds
            total = None if going.of is None else max(going.of, 1)
            self._bar.update(
                self._task, description=self._name, total=total, completed=going.made, words=words_of(going)
            )

    def done(self, trace: Trace) -> None:
        """It is over."""
        steps = min((len(rank.backwards) for rank in trace.ranks), default=0)
        if trace.usable:
            self.line(f"  {trace.name}: {plural(steps, 'step')} in {trace.seconds:.1f} s")
        else:
            self.line(f"  {trace.name}: ", ("failed", "yellow"), f" ({trace.seconds:.1f} s)")


def words_of(going: Going) -> str:
    """How far a run has come: "12 of 50 steps, about 8 s left, then 2 min for the runs after it"."""
    steps = f"{going.made} of {plural(going.of, 'step')}" if going.of is not None else plural(going.made, "step")
    words = [steps if going.made or going.of is not None else f"{going.seconds:.0f} s"]
    if going.left is not None:
        words.append(f"about {_duration(going.left)} left")
    if going.later:
        words.append(f"then {_duration(going.later)} for the runs after it")
    return ", ".join(words)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def render(evidence: Evidence, colour: str) -> str:
    """The evidence as text: the runs, the checks, and last the verdict and how far it reaches."""
    styled = _Styled(wants_colour(colour, sys.stdout))
    lines = [_headline(evidence), ""]
    lines += _table(evidence, styled)
    if evidence.checks:
        lines.append("")
    for check in worst_last(evidence.checks):
        sign = styled.sign(check.verdict)
        lines += [f"{sign} {styled(check.title, 'bold')} {styled(f'({check.id})', 'dim')}", *_wrapped(check.message)]
    for note in _notes(evidence):
        lines += ["", *_wrapped(f"note: {note}", "")]
    verdict = styled(IN_WORDS[evidence.verdict], _SIGNS[evidence.verdict][2])
    lines += ["", f"{styled.sign(evidence.verdict)} {verdict}: {visible(evidence.summary)}"]
    if far := reach(evidence):
        lines += _wrapped(f"{reach_label(evidence.verdict)} {far}")
    return "\n".join(lines) + "\n"


class _Styled:
    def __init__(self, coloured: bool) -> None:
        self.coloured = coloured

    def __call__(self, text: str, style: str) -> str:
        text = visible(text)
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.coloured else text

    def sign(self, verdict: Verdict) -> str:
        """A sign that the terminal can show."""
        sign, word, style = _SIGNS[verdict]
        try:
            sign.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:
            sign = word
        return self(sign, style)


def _headline(evidence: Evidence) -> str:
    command = visible(" ".join([evidence.script, *evidence.arguments]))
    versions = ", ".join(f"{name} {version}" for name, version in evidence.versions.items())
    return f"{command}: on {evidence.device} ({versions})"


def _notes(evidence: Evidence) -> Iterator[str]:
    yield from evidence.notes
    if not repeats(evidence):
        yield OTHER_NUMBERS
    yield from map(speed_in_words, evidence.speeds)


def _table(evidence: Evidence, styled: _Styled) -> list[str]:
    """One line for each run, with errors below it; columns that hold nothing are left out."""
    head = ("run", "steps", "first loss", "last loss", "skipped", "scale", "memory", "until")
    rows = [_row(run, evidence) for run in evidence.runs]
    kept = [index for index in range(len(head)) if index < 2 or any(row[index] for row in rows)]
    shown = [[row[index] for index in kept] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = [styled(_line(shown[0], widths), "dim")]
    for run, row in zip(evidence.runs, shown[1:], strict=True):
        lines.append(_line(row, widths))
        if run.error:
            lines += [styled(line, "yellow") for line in _wrapped(run.error)]
    return lines


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    """The cells of a row: words on the left, numbers on the right."""
    last = len(row) - 1
    cells = [
        text.ljust(width) if index in (0, last) else text.rjust(width)
        for index, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _row(run: Measured, evidence: Evidence) -> tuple[str, ...]:
    losses = ["nan" if loss is None else f"{loss:.5g}" for loss in run.losses]
    ends = [losses[0], losses[-1]] if losses else ["", ""]
    first, last = ends if repeats(evidence) else [VARIES if end else "" for end in ends]
    return (
        run.name,
        str(len(losses)) if is_counted(run) else "",
        first,
        last if is_counted(run) else "",
        str(run.skipped) if run.scales or run.skipped else "",
        f"{run.scales[-1]:g}" if run.scales else "",
        memory_in_words(evidence, run),
        until(run),
    )


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    width = _WIDTH - len(indent)
    return textwrap.wrap(visible(text), width, initial_indent=indent, subsequent_indent=indent or "  ")
