"""One thing to be said about a place in a file: what all formats for review tools have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from amp_migrate.problems import Problem

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Point:
    """A place in a text.

    Attributes:
        line: from 1.
        column: from 1, in code points.
        byte: the column in bytes of UTF-8, those of a byte order mark included.
    """

    line: int
    column: int
    byte: int


@dataclass(frozen=True)
class Region:
    """A half-open range of a text."""

    start: Point
    end: Point


@dataclass(frozen=True)
class Patch:
    """What stands at ``region`` becomes ``text``."""

    region: Region
    text: str


@dataclass(frozen=True)
class Remark:
    """One thing to be said.

    Attributes:
        path: the file.
        level: how bad it is.
        code: of the rule; empty for what no rule says.
        title: a few words.
        text: the message.
        region: where; None where the file has no such lines, as in a notebook, or where nothing is known.
        patches: what to write instead, each piece by itself.
        fix: what the patches do, in a few words.
        line_text: what it is recognised by when lines move.
        properties: more for formats that have room for it.
    """

    path: Path
    level: Level
    code: str
    title: str
    text: str
    region: Region | None = None
    patches: tuple[Patch, ...] = ()
    fix: str = ""
    line_text: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RulePage:
    """A rule as it is described to those who meet its remarks.

    Attributes:
        message: one sentence.
        full: the sentence and what to do.
        page: its documentation, as markdown.
        tags: words to find it by.
        severity: ``error``, ``warning`` or ``recommendation``, in GitHub's words.
    """

    code: str
    name: str
    message: str
    full: str
    page: str
    level: Level
    tags: tuple[str, ...]
    severity: str


def of_problem(problem: Problem, tool: str) -> Remark:
    """The remark that a file could not be dealt with."""
    region = None
    text = problem.message if problem.cell is None else str(problem)
    if problem.line and problem.cell is None:
        point = Point(problem.line, problem.column or 1, problem.column or 1)
        region = Region(point, point)
    return Remark(problem.path, "error", "", tool, text, region)


def separated(items: Iterator[str]) -> Iterator[str]:
    """Yield the items of a JSON list, one a line."""
    for index, item in enumerate(items):
        yield (",\n" if index else "\n") + item
