"""Lines of a cell that are IPython's (``%magic``, ``!shell``, ``?help``), and what stands for them while it is Python.

Such a line becomes ``pass`` with a mark that says what stood there. One that only measures a statement, such as
``%time train()``, keeps the statement, in its columns: it is run like any other.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from amp_rules.source.notebook import IPYTHON_MARK

# A magic or a shell command, help on a name, or the result of either given a name.
_IPYTHON = re.compile(r"^[ \t]*(?:[%!?]|[\w.]+[ \t]*=[ \t]*[%!]|[\w.%*]+\?{1,2}[ \t\r]*$)")
# Commands that IPython takes without a percent sign where the line is no Python.
_AUTOMAGIC = re.compile(r"^[ \t]*(?:pip3?|conda|cd|ls|ll|pwd|mkdir|rmdir|rm|mv|cp|cat|env|man|less|more)[ \t]+\S")
_MEASURED = re.compile(
    r"^(?P<indent>[ \t]*)(?P<prefix>%(?:time|timeit|prun|memit)(?:[ \t]+-[a-zA-Z]+[ \t]*\d*)*[ \t]+)"
)
_MARKED = re.compile(
    rf"^(?P<indent>[ \t]*)(?:pass|None|None *; (?P<code>.*?)) +{re.escape(IPYTHON_MARK)}(?P<index>\d+)(?P<rest>.*)$",
    re.MULTILINE,
)
# The magics of a whole cell below which Python stands that belongs to the notebook's own process.
_PYTHON_CELLS = frozenset({"time", "timeit", "capture", "prun", "debug", "heat", "memit", "mprun"})


@dataclass(frozen=True)
class Original:
    """What a mark stands for.

    Attributes:
        line: the line as it stands in the cell.
        indent: the indentation of the statement that it is, or is continued from.
        prefix: the magic, where the rest of the line is Python.
    """

    line: str
    indent: str
    prefix: str = ""


def without_ipython(text: str, *, measured: bool = True) -> tuple[str | None, tuple[Original, ...]]:
    """Return the text with IPython's lines replaced, and those lines; None if the cell is another language.

    ``measured`` says whether statements that are only measured are kept.
    """
    lines = text.split("\n")
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    magic = re.match(r"%%(\w+)", lines[first])
    if magic and magic[1] not in _PYTHON_CELLS:
        return None, ()
    originals: list[Original] = []
    indent, continued = "", False
    for index, line in enumerate(lines):
        if not (continued or _IPYTHON.match(line) or _is_automagic(line)):
            continue
        mark = f"{IPYTHON_MARK}{len(originals)}"
        found = _MEASURED.match(line) if measured and not continued else None
        if found:
            prefix = found["prefix"]
            # As long as the magic, so that the columns of the statement are those of the notebook.
            lines[index] = f"{found['indent']}{'None':<{len(prefix) - 2}}; {line[found.end() :].rstrip()}  {mark}"
            originals.append(Original(line, found["indent"], prefix))
            continue
        if not continued:
            indent = line[: len(line) - len(line.lstrip(" \t"))]
        lines[index] = f"{indent}pass {mark}"
        originals.append(Original(line, indent))
        continued = line.rstrip("\r").endswith("\\")
    return "\n".join(lines), tuple(originals)


def without_indent(text: str) -> tuple[str, str]:
    """Return the indentation that all lines of a cell have in common with its first, and the cell without it."""
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip(" \t"))]
    if not indent or not all(line.startswith(indent) for line in lines if line.strip()):
        return "", text
    return indent, "\n".join(line[len(indent) :] if line.strip() else line for line in lines)


def restored(python: str, originals: Sequence[Original]) -> str:
    """Return a changed text of a cell with IPython's own lines put back, indented as the marks are now."""

    def original(match: re.Match[str]) -> str:
        found = originals[int(match["index"])]
        if found.prefix:
            end = found.line[len(found.line.rstrip()) :]
            return f"{match['indent']}{found.prefix}{match['code']}{match['rest']}{end}"
        line = found.line
        if line.startswith(found.indent):
            line = match["indent"] + line[len(found.indent) :]
        return line + match["rest"]

    return _MARKED.sub(original, python)


def error_in(text: str) -> Exception | None:
    """Return what is wrong with a text as Python, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return error
    return None


def _is_automagic(line: str) -> bool:
    return bool(_AUTOMAGIC.match(line)) and error_in(line.strip()) is not None
