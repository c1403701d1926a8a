"""Workflow commands of GitHub Actions, which show remarks in a pull request.

Source: https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from amp_migrate.out.review.remark import Level, Region, Remark
from amp_migrate.problems import shown

_COMMANDS: dict[Level, str] = {"error": "error", "warning": "warning", "note": "notice"}


def commands(remarks: Iterable[Remark]) -> Iterator[str]:
    """Yield one command a remark."""
    for remark in remarks:
        properties = {"file": shown(remark.path), **_place(remark.region), "title": remark.title}
        listed = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
        yield f"::{_COMMANDS[remark.level]} {listed}::{_data(remark.text)}\n"


def _place(region: Region | None) -> dict[str, int]:
    if region is None:
        # A line of a cell is no line of the file that GitHub shows.
        return {"line": 1}
    start, end = region.start, region.end
    place = {"line": start.line, "col": start.column, "endLine": end.line, "endColumn": end.column}
    # Columns are understood within one line only.
    return place if start.line == end.line else {"line": start.line, "endLine": end.line}


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
