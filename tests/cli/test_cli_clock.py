"""What a terminal shows of work on a few files."""

from __future__ import annotations

import io
import time
from pathlib import Path

from amp_migrate.out import terminal


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown_on(monkeypatch, stream, total, **options):
    monkeypatch.setattr(terminal, "_SILENT_FOR", 0.02)
    monkeypatch.setattr("sys.stderr", stream)
    with terminal.Messages(**options).progress(total) as advance:
        advance(Path("train.py"))
        end = time.monotonic() + 10
        while not stream.getvalue() and total and time.monotonic() < end and stream.isatty() and not options:
            time.sleep(0.01)
        time.sleep(0.1 if not stream.getvalue() else 0)
    return stream.getvalue()


def test_work_that_takes_long_is_named_and_the_line_taken_away(monkeypatch):
    text = shown_on(monkeypatch, Terminal(), 1)
    assert text.startswith("\ranalysing train.py (0 s)")
    *_, blank, end = text.split("\r")
    assert not blank.strip() and blank and end == ""


def test_a_file_and_quiet_runs_get_no_line(monkeypatch):
    assert shown_on(monkeypatch, io.StringIO(), 1) == ""
    assert shown_on(monkeypatch, Terminal(), 1, quiet=True) == ""


def test_short_work_shows_nothing(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with terminal.Messages().progress(1) as advance:
        advance(Path("train.py"))
    assert stream.getvalue() == ""
