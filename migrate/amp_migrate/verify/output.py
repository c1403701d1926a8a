"""What people read of a verification: its progress on standard error, the result on standard output."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from amp_migrate.out.terminal import Messages, plural, visible, wants_colour
from amp_migrate.verify.copies import size_in_words
from amp_migrate.verify.evidence import Evidence, Measured, Verdict
from amp_migrate.verify.traces import Trace

_SIGNS: dict[Verdict, tuple[str, str, str]] = {
    "proved": ("✓", "ok", "green"),
    "disproved": ("✗", "FAIL", "red"),
    "unproved": ("?", "??", "yellow"),
}
_WIDTH = 110
_STYLES = {"green": "32", "red": "31", "yellow": "33", "bold": "1", "dim": "2"}


@dataclass
class Progress(Messages):
    """Says which run is being made: in one line that moves where somebody watches, else in one line for each."""

    _status: Any = field(default=None, init=False)
    _name: str = field(default="", init=False)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show what is going on until the end of the block."""
        if self.quiet or not sys.stderr.isatty():
            yield
            return
        from rich.status import Status

        self._status = Status("", console=self.console)
        try:
            with self._status:
                yield
        finally:
            self._status = None

    def begin(self, name: str) -> None:
        """A run is about to start."""
        self._name = name
        self.tick(0.0)

    def tick(self, seconds: float) -> None:
        """It has been running for so long."""
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(f"{self._name}, {seconds:.0f} s"))

    def done(self, trace: Trace) -> None:
        """It is over."""
        steps = min((len(rank.backwards) for rank in trace.ranks), default=0)
        if trace.usable:
            self.line(f"  {trace.name}: {plural(steps, 'step')} in {trace.seconds:.1f} s")
        else:
            self.line(f"  {trace.name}: ", ("did not get through", "yellow"), f" ({trace.seconds:.1f} s)")


def render(evidence: Evidence, colour: str) -> str:
    """The evidence as text: the runs, the checks, and the verdict in the last line."""
    styled = _Styled(wants_colour(colour, sys.stdout))
    lines = [_headline(evidence), ""]
    lines += _table(evidence.runs, styled)
    if evidence.checks:
        lines.append("")
    for check in evidence.checks:
        sign = styled.sign(check.verdict)
        lines += [f"{sign} {styled(check.title, 'bold')} {styled(f'({check.id})', 'dim')}", *_wrapped(check.message)]
    for note in evidence.notes:
        lines += ["", *_wrapped(f"note: {note}", "")]
    verdict = styled(evidence.verdict, _SIGNS[evidence.verdict][2])
    lines += ["", f"{styled.sign(evidence.verdict)} {verdict}: {visible(evidence.summary)}"]
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
    return f"{command}: {plural(evidence.steps, 'step')}, on {evidence.device} ({versions})"


def _table(runs: Sequence[Measured], styled: _Styled) -> list[str]:
    """One line for each run, with errors below it."""
    head = ("run", "steps", "first loss", "last loss", "steps/s", "memory", "skipped", "scale")
    rows = [_row(run) for run in runs]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [styled("  ".join(_cells(head, widths)).rstrip(), "dim")]
    for run, row in zip(runs, rows, strict=True):
        lines.append("  ".join(_cells(row, widths)).rstrip())
        if run.error:
            lines += [styled(line, "yellow") for line in _wrapped(run.error)]
    return lines


def _cells(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for index, (text, width) in enumerate(zip(row, widths, strict=True)):
        yield text.rjust(width) if index else text.ljust(width)


def _row(run: Measured) -> tuple[str, ...]:
    losses = ["nan" if loss is None else f"{loss:.5g}" for loss in run.losses]
    return (
        run.name,
        str(len(losses)),
        losses[0] if losses else "",
        losses[-1] if losses else "",
        "" if run.steps_per_second is None else f"{run.steps_per_second:.3g}",
        "" if run.peak_memory is None else size_in_words(run.peak_memory),
        str(run.skipped) if run.scales or run.skipped else "",
        f"{run.scales[-1]:g}" if run.scales else "",
    )


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    width = _WIDTH - len(indent)
    return textwrap.wrap(visible(text), width, initial_indent=indent, subsequent_indent=indent or "  ")
