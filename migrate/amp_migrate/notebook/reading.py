"""A notebook taken apart, and put together again.

The cells are joined so that names carry over from one to the next; what is IPython's in them is replaced as
:mod:`amp_migrate.notebook.ipython` says. On the way back only the text of changed cells is replaced; the rest of the
file stays byte for byte as it was.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from amp_rules.source.notebook import HEADING, IPYTHON_MARK
from amp_rules.source.text import SourceError, SourceFile, syntax_source_error

from amp_migrate.notebook.cells import Cells
from amp_migrate.notebook.ipython import Original, error_in, restored, without_indent, without_ipython
from amp_migrate.notebook.jsontext import as_json, source_spans
from amp_migrate.problems import Problem

_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class CodeCell:
    """One code cell.

    Attributes:
        number: among all cells, from 1.
        text: as it stands in the notebook.
        python: the same number of lines that are Python; empty lines where the cell holds none.
        originals: the lines that IPython's marks stand for.
        skipped: whether the cell is no Python, so that it is not changed either.
        indent: what all its lines begin with; IPython takes that away.
    """

    number: int
    text: str
    python: str
    originals: tuple[Original, ...] = ()
    skipped: bool = False
    indent: str = ""

    def restored(self, python: str) -> str:
        """Return a changed text of the cell with IPython's own lines put back."""
        text = restored(python, self.originals)
        return re.sub(r"^(?=[^\r\n]*\S)", self.indent, text, flags=re.MULTILINE) if self.indent else text


@dataclass(frozen=True)
class Notebook:
    """A notebook whose code cells can be analysed.

    Attributes:
        cells: its code cells.
        source: their joined text.
        places: which of its lines belong to which cell.
        broken: the first cell that should be Python and is not, if there is one.
        language: of its kernel; the cells of any but Python are not taken.
    """

    path: Path
    data: bytes
    cells: tuple[CodeCell, ...]
    source: SourceFile
    places: Cells
    broken: SourceError | None = None
    language: str = "python"
    _spans: Mapping[int, tuple[int, int]] = field(default_factory=dict, repr=False)

    @property
    def shown(self) -> str:
        """The joined text as people know it: line by line the same, with what is IPython's in it."""
        return "".join(f"{cell.python if cell.skipped else cell.text}\n" for cell in self.cells)

    @property
    def problem(self) -> Problem | None:
        """The first broken cell, for who goes on without it."""
        if self.broken is None:
            return None
        found = Problem.from_source_error(self.broken)
        return replace(found, message=f"{found.message}; the cell was passed over")

    def updated(self, texts: Mapping[int, str]) -> bytes:
        """Return the file with new texts for some cells, by number; all other bytes stay."""
        raw = self.data.decode("utf-8")
        for number in sorted(texts, reverse=True):
            start, end = self._spans[number]
            raw = raw[:start] + as_json(texts[number], raw[start:end]) + raw[end:]
        return raw.encode("utf-8")


def read_notebook(data: bytes, path: Path) -> Notebook:
    """Take a notebook apart.

    Raises:
        SourceError: it is not a Python notebook of format 4.
    """
    document = _document(data, path)
    cells: list[CodeCell] = []
    broken: SourceError | None = None
    language = _language(document)
    if language == "python":
        for number, cell in enumerate(document["cells"], start=1):
            if isinstance(cell, dict) and cell.get("cell_type") == "code":
                code, error = _code_cell(number, _text(cell.get("source", "")), path)
                cells.append(code)
                broken = broken or error
    starts, line = [], 1
    for code in cells:
        starts.append(line)
        line += len(_LINE_END.findall(code.python)) + 1
    joined = "".join(f"{code.python}\n" for code in cells)
    places = Cells(tuple(code.number for code in cells) or (1,), tuple(starts) or (1,))
    source = SourceFile(path, joined.encode("utf-8", "surrogatepass"), joined, "utf-8")
    spans = dict(source_spans(data.decode("utf-8")))
    return Notebook(path, data, tuple(cells), source, places, broken, language, spans)


def _document(data: bytes, path: Path) -> dict[str, Any]:
    if data.startswith(codecs.BOM_UTF8):
        raise SourceError(path, "begins with a byte order mark, which Jupyter does not read; save it without", 1)
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


def _code_cell(number: int, text: str, path: Path) -> tuple[CodeCell, SourceError | None]:
    if HEADING in text or IPYTHON_MARK in text:
        raise SourceError(path, "holds a mark that this program itself puts into notebooks", cell=number)
    if error_in(text) is None:
        return CodeCell(number, text, text), None
    indent, straight = without_indent(text)
    error: Exception | None = None
    for measured in (True, False):
        python, originals = without_ipython(straight, measured=measured)
        if python is None:
            return CodeCell(number, text, _blank(text), skipped=True), None
        error = error_in(python)
        if error is None:
            return CodeCell(number, text, python, originals, indent=indent), None
    found = SourceError(path, f"cannot be parsed: {error}")
    if isinstance(error, SyntaxError):
        found = syntax_source_error(SourceFile(path, b"", python or "", "utf-8"), error)
    found.cell = number
    return CodeCell(number, text, _blank(text), skipped=True), found


def _blank(text: str) -> str:
    return "\n" * text.count("\n")
