"""Files as the migration takes them: scripts as they are, notebooks as the joined text of their cells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from amp_rules.source.notebook import SUFFIX, cells_in, joined
from amp_rules.source.text import SourceError, SourceFile, read_bytes, source_from_bytes

from amp_migrate.notebook.reading import CodeCell, Notebook, read_notebook


class OtherLanguageError(SourceError):
    """A notebook whose kernel runs something else than Python."""


@dataclass(frozen=True)
class NotebookSource(SourceFile):
    """A notebook: ``text`` joins its code cells, ``data`` is the file.

    Attributes:
        notebook: its parts.
        first_line: a line for IPython that its first cell of Python is to begin with.
    """

    notebook: Notebook
    first_line: str = ""

    def encode(self, text: str) -> bytes:
        """Return the file with the cells of a changed text; of cells that stay, and of all else, no byte changes."""
        return self.notebook.updated({number: new for number, _, new in self.changed_cells(text)})

    def changed_cells(self, text: str) -> list[tuple[int, str, str]]:
        """Return number, old text and new text of the cells in which a changed joined text differs."""
        news = {cell.number: cell.text for cell in cells_in(text)}
        found = []
        first = self._first()
        for cell in self.notebook.cells:
            before, after = _lines_of(cell), news[cell.number]
            new = cell.restored(after.removesuffix(_line_end(cell))) if after != before else cell.text
            if cell is first:
                new = f"{cell.indent}{self.first_line}{_line_end(cell)}{new}"
            if new != cell.text:
                found.append((cell.number, cell.text, new))
        return found

    def _first(self) -> CodeCell | None:
        """The cell that gets the line: one that is Python as a whole, without a magic that must stand first."""
        cells = (cell for cell in self.notebook.cells if not cell.skipped and cell.python.strip())
        plain = (cell for cell in cells if not cell.text.lstrip().startswith("%%"))
        return next(plain, None) if self.first_line else None


def load(path: Path) -> SourceFile:
    """Read a script or a notebook.

    Raises:
        SourceError: it cannot be read or decoded, or is no notebook of Python.
    """
    return source_of(read_bytes(path), path)


def source_of(data: bytes, path: Path) -> SourceFile:
    """Return the source that the bytes of a script or a notebook are.

    Raises:
        SourceError: they cannot be decoded, or are no notebook of Python.
    """
    if path.suffix != SUFFIX:
        return source_from_bytes(data, path)
    notebook = read_notebook(data, path)
    if notebook.language != "python":
        raise OtherLanguageError(path, f"is a notebook of {notebook.language}, not of Python")
    if notebook.broken:
        # What a cell that cannot be parsed does to the training is not known.
        raise notebook.broken
    text = joined([(cell.number, _lines_of(cell)) for cell in notebook.cells])
    return NotebookSource(path, data, text, "utf-8", notebook)


def _lines_of(cell: CodeCell) -> str:
    return cell.python + _line_end(cell)


def _line_end(cell: CodeCell) -> str:
    """The line end that a cell's last line gets while it stands among the others."""
    return "\r\n" if "\r\n" in cell.python else "\n"
