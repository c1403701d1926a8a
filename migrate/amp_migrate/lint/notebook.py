"""Jupyter notebooks: the code cells as one Python text, and the way back into the file.

The cells are joined so that names carry over from one to the next. IPython's own lines (``%magic``, ``!shell``,
``?help``) become ``pass`` on the same line with a mark that says what stood there. On the way back only the text of
changed cells is replaced; the rest of the file stays byte for byte as it was.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from amp_rules.program.source import SourceError, SourceFile, syntax_source_error

from amp_migrate.lint.diagnostics import Cells
from amp_migrate.problems import Problem

_MARK = "#amp-lint-ipython:"
_MARKED = re.compile(rf"^(?P<indent>[ \t]*)(?:pass|None) {_MARK}(?P<index>\d+)(?P<rest>.*)$", re.MULTILINE)
# A magic or a shell command, help on a name, or the result of either given a name.
_IPYTHON = re.compile(r"^[ \t]*(?:[%!?]|[\w.]+[ \t]*=[ \t]*[%!]|[\w.%*]+\?{1,2}[ \t]*$)")
# The magics of a whole cell below which Python stands.
_PYTHON_CELLS = frozenset({"time", "timeit", "capture", "prun", "python", "python3", "debug", "heat", "memit", "mprun"})
_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class CodeCell:
    """One code cell.

    Attributes:
        number: among all cells, from 1.
        text: as it stands in the notebook.
        python: the same number of lines that are Python; empty lines where the cell holds none.
        originals: the lines that IPython's marks stand for.
        skipped: whether the cell is no Python, so that it is not changed either.
    """

    number: int
    text: str
    python: str
    originals: tuple[str, ...] = ()
    skipped: bool = False

    def restored(self, python: str) -> str:
        """Return a changed text of the cell with IPython's own lines put back."""

        def original(match: re.Match[str]) -> str:
            line = self.originals[int(match["index"])]
            return line if not match["rest"] else line + match["rest"]

        return _MARKED.sub(original, python)


@dataclass(frozen=True)
class Notebook:
    """A notebook whose code cells can be analysed.

    Attributes:
        cells: its code cells.
        source: their joined text.
        places: which of its lines belong to which cell.
        problem: the first cell that is no Python, if there is one.
    """

    path: Path
    data: bytes
    cells: tuple[CodeCell, ...]
    source: SourceFile
    places: Cells
    problem: Problem | None = None
    _spans: Mapping[int, tuple[int, int]] = field(default_factory=dict, repr=False)

    def updated(self, texts: Mapping[int, str]) -> bytes:
        """Return the file with new texts for some cells, by number; all other bytes stay."""
        raw = self.data.decode("utf-8")
        for number in sorted(texts, reverse=True):
            start, end = self._spans[number]
            raw = raw[:start] + _as_json(texts[number], raw[start:end]) + raw[end:]
        return raw.encode("utf-8")


def read_notebook(data: bytes, path: Path) -> Notebook:
    """Take a notebook apart.

    Raises:
        SourceError: it is not a Python notebook of format 4.
    """
    document = _document(data, path)
    cells: list[CodeCell] = []
    problem: Problem | None = None
    if _language(document) == "python":
        for number, cell in enumerate(document["cells"], start=1):
            if isinstance(cell, dict) and cell.get("cell_type") == "code":
                code, error = _code_cell(number, _text(cell.get("source", "")), path)
                cells.append(code)
                problem = problem or error
    starts, line = [], 1
    for code in cells:
        starts.append(line)
        line += code.python.count("\n") + 1
    joined = "".join(f"{code.python}\n" for code in cells)
    places = Cells(tuple(code.number for code in cells) or (1,), tuple(starts) or (1,))
    source = SourceFile(path, joined.encode("utf-8", "surrogatepass"), joined, "utf-8")
    spans = dict(_source_spans(data.decode("utf-8")))
    return Notebook(path, data, tuple(cells), source, places, problem, spans)


def _document(data: bytes, path: Path) -> dict[str, Any]:
    try:
        document = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise SourceError(path, "is not UTF-8, as notebooks are") from error
    except json.JSONDecodeError as error:
        raise SourceError(path, f"is not a notebook: {error.msg}", error.lineno, error.colno) from error
    except RecursionError as error:
        raise SourceError(path, "is not a notebook: nested too deeply") from error
    if not isinstance(document, dict):
        raise SourceError(path, "is not a notebook")
    if not isinstance(document.get("cells"), list):
        old = document.get("nbformat") in (1, 2, 3)
        hint = "is a notebook of an old format; `jupyter nbconvert --to notebook --nbformat 4` converts it"
        raise SourceError(path, hint if old else "is not a notebook: it has no cells")
    return document


def _language(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        part = metadata.get(key)
        if isinstance(part, dict) and isinstance(part.get(name), str):
            return str(part[name]).lower()
    return "python"


def _text(source: object) -> str:
    """Return a cell's text, which the format allows to be a string or a list of lines."""
    if isinstance(source, list):
        return "".join(item for item in source if isinstance(item, str))
    return source if isinstance(source, str) else ""


def _code_cell(number: int, text: str, path: Path) -> tuple[CodeCell, Problem | None]:
    if _error(text) is None:
        return CodeCell(number, text, text), None
    python, originals = _without_ipython(text)
    if python is None:
        return CodeCell(number, text, _blank(text), skipped=True), None
    error = _error(python)
    if error is None:
        return CodeCell(number, text, python, tuple(originals)), None
    complaint = Problem.from_source_error(
        syntax_source_error(SourceFile(path, b"", python, "utf-8"), error)
        if isinstance(error, SyntaxError)
        else SourceError(path, f"cannot be parsed: {error}")
    )
    problem = replace(complaint, cell=number, message=f"{complaint.message}; the cell was passed over")
    return CodeCell(number, text, _blank(text), skipped=True), problem


def _error(text: str) -> Exception | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return error
    return None


def _without_ipython(text: str) -> tuple[str | None, list[str]]:
    """Return the text with IPython's lines replaced, and those lines; None if the cell is another language."""
    lines = text.split("\n")
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    magic = re.match(r"%%(\w+)", lines[first])
    if magic and magic[1] not in _PYTHON_CELLS:
        return None, []
    originals: list[str] = []
    indent, continued = "", False
    for index, line in enumerate(lines):
        if continued or _IPYTHON.match(line):
            if not continued:
                indent = line[: len(line) - len(line.lstrip(" \t"))]
            lines[index] = f"{indent}pass {_MARK}{len(originals)}"
            originals.append(line)
            continued = line.endswith("\\")
    return "\n".join(lines), originals


def _blank(text: str) -> str:
    return "\n" * text.count("\n")


# ---- the file ------------------------------------------------------------------------------------------------


def _source_spans(raw: str) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the number of each cell and where in the file the value of its ``source`` stands."""
    for key, start, _ in _members(raw, _skip(raw, 0)):
        if key == "cells":
            for number, (cell, _) in enumerate(_items(raw, start), start=1):
                if raw[cell] == "{":
                    yield from ((number, (at, end)) for name, at, end in _members(raw, cell) if name == "source")


def _members(raw: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, start and end of the members of the object at ``at``."""
    at = _skip(raw, at + 1)
    while raw[at] != "}":
        name, at = _DECODER.raw_decode(raw, at)
        start = _skip(raw, _skip(raw, at) + 1)
        _, end = _DECODER.raw_decode(raw, start)
        yield name, start, end
        at = _next(raw, end)


def _items(raw: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of the items of the array at ``at``."""
    at = _skip(raw, at + 1)
    while raw[at] != "]":
        _, end = _DECODER.raw_decode(raw, at)
        yield at, end
        at = _next(raw, end)


def _next(raw: str, at: int) -> int:
    at = _skip(raw, at)
    return _skip(raw, at + 1) if raw[at] == "," else at


def _skip(raw: str, at: int) -> int:
    match = _BLANK.match(raw, at)
    return match.end() if match else at


def _as_json(text: str, old: str) -> str:
    """Write a cell's text as the old value was written: a string or a list, on one line or on several.

    Lines that stay are copied, for there is more than one way to write a string.
    """
    ascii_only = old.isascii() and "\\u" in old
    if not old.startswith("["):
        return json.dumps(text, ensure_ascii=ascii_only)
    written = {json.loads(old[start:end]): old[start:end] for start, end in _items(old, 0)}
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    items = [written.get(line) or json.dumps(line, ensure_ascii=ascii_only) for line in lines]
    inner = re.match(r"\[(\s*)", old)
    outer = re.search(r"(\s*)\]$", old)
    before, after = (inner[1] if inner else ""), (outer[1] if outer else "")
    separator = f",{before}" if "\n" in before else ", "
    return f"[{before}{separator.join(items)}{after}]" if items else "[]"
