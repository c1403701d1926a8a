"""The diagnostic format of reviewdog; its columns count bytes of UTF-8.

Source: https://github.com/reviewdog/reviewdog/tree/master/proto/rdf
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from amp_migrate.out.review.remark import Level, Point, Region, Remark, separated
from amp_migrate.problems import shown

_SEVERITIES: dict[Level, str] = {"error": "ERROR", "warning": "WARNING", "note": "INFO"}


def document(tool: str, remarks: Iterable[Remark]) -> Iterator[str]:
    """Yield the document, one remark at a time."""
    yield f'{{\n"source": {{"name": "{tool}"}},\n"severity": "WARNING",\n"diagnostics": ['
    yield from separated(json.dumps(_diagnostic(remark)) for remark in remarks)
    yield "\n]\n}\n"


def _diagnostic(remark: Remark) -> dict[str, Any]:
    location: dict[str, Any] = {"path": shown(remark.path)}
    if remark.region is not None:
        location["range"] = _range(remark.region)
    document: dict[str, Any] = {
        "message": remark.text,
        "location": location,
        "severity": _SEVERITIES[remark.level],
    }
    if remark.code:
        document["code"] = {"value": remark.code}
    if remark.patches:
        document["suggestions"] = [{"range": _range(part.region), "text": part.text} for part in remark.patches]
    return document


def _range(region: Region) -> dict[str, Any]:
    return {"start": _position(region.start), "end": _position(region.end)}


def _position(point: Point) -> dict[str, int]:
    return {"line": point.line, "column": point.byte}
