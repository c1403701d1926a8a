"""Applies what review formats suggest, as the standards define it, and nothing of the program's own."""

from __future__ import annotations

from itertools import pairwise


def apply_rdjson(data: bytes, diagnostics) -> bytes:
    """The file with all suggestions applied; lines end at line feeds, and columns count its bytes from 1."""
    starts = [0]
    for line in data.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)

    def offset(position):
        start, end = starts[position["line"] - 1], starts[position["line"]]
        assert 1 <= position["column"] <= end - start, "the column lies behind its line"
        return start + position["column"] - 1

    pieces = []
    for diagnostic in diagnostics:
        for suggestion in diagnostic.get("suggestions", ()):
            assert suggestion["range"] == diagnostic["location"]["range"]
            start, end = (offset(suggestion["range"][key]) for key in ("start", "end"))
            pieces.append((start, end, suggestion["text"].encode("utf-8", "surrogatepass")))
    return _replaced(data, pieces)


def apply_sarif(text: str, results) -> str:
    """The text, without a byte order mark, with all fixes applied; columns count code points from 1."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    pieces = []
    for result in results:
        for fix in result.get("fixes", ()):
            (change,) = fix["artifactChanges"]
            for replacement in change["replacements"]:
                region = replacement["deletedRegion"]
                start = starts[region["startLine"] - 1] + region["startColumn"] - 1
                end = starts[region["endLine"] - 1] + region["endColumn"] - 1
                pieces.append((start, end, replacement.get("insertedContent", {"text": ""})["text"]))
    return _replaced(text, pieces)


def _replaced(whole, pieces):
    """Replace from the end to the beginning, so that no place moves before it is needed."""
    pieces = sorted(pieces, key=lambda piece: piece[:2])
    for (_, end, _), (start, _, _) in pairwise(pieces):
        assert end <= start, "two suggestions overlap"
    for start, end, new in reversed(pieces):
        assert 0 <= start <= end <= len(whole), "a suggestion lies outside of the file"
        whole = whole[:start] + new + whole[end:]
    return whole
