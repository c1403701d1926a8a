"""Reading Python files as they are: encoding, byte order mark and newlines survive a round trip."""

from __future__ import annotations

import ast
import re
import sys
import tokenize
import warnings
from dataclasses import dataclass
from pathlib import Path

_NEWLINE = re.compile(rb"\r\n|\r|\n")
# Bytes that are no ASCII, save for the byte order mark.
_LEGACY = re.compile(rb"(?!\A\xef\xbb\xbf)(?<!\A\xef)(?<!\A\xef\xbb)[\x80-\xff]")

# What Python 3's parser says about the two most frequent Python 2 constructs.
_PYTHON2_MESSAGES = (
    "Missing parentheses in call to 'print'",
    "Missing parentheses in call to 'exec'",
    "multiple exception types must be parenthesized",
)
# The rest is told by the line itself, and only once that line is known not to be Python 3.
_PYTHON2_LINE = re.compile(
    r"""^\s*print\s+["'\w(]          # print "loss", loss
      | ^\s*exec\s+["'\w]            # exec "code"
      | ^\s*except\b[^:()]*,\s*\w+\s*:   # except IOError, error:
      | ^\s*raise\s+[\w.]+\s*,       # raise ValueError, "no"
      | <>                           # a <> b
      | `[^`]+`                      # `value`
      | \b(?:0[xX][0-9a-fA-F]+|\d+)[lL]\b  # 10L
      | (?<![\w.])0[0-7]+\b          # 0777
      | \b[uU][rR]["']               # ur"text"
    """,
    re.VERBOSE,
)
PYTHON2_MESSAGE = "Python 2: convert with 2to3 first"
_MAX_DEPTH = 3000
MAX_BYTES = 2_000_000
"""Larger files hold data, not programs."""
TOO_DEEP_MESSAGE = "the code is nested too deeply to be analysed"


class SourceError(Exception):
    """A file that cannot be read as Python 3: the user's mistake, not the program's.

    Attributes:
        path: the file.
        message: what is wrong, without the path.
        line: the line that it was found on, counted from 1, or None.
        column: the column, counted from 1 in code points, or None.
        cell: in a notebook, the number of the cell whose lines are counted.
    """

    def __init__(
        self,
        path: Path,
        message: str,
        line: int | None = None,
        column: int | None = None,
        cell: int | None = None,
    ) -> None:
        super().__init__(path, message, line, column, cell)
        self.path = path
        self.message = message
        self.line = line
        self.column = column
        self.cell = cell

    def __str__(self) -> str:
        place = str(self.path) if self.cell is None else f"{self.path}:cell {self.cell}"
        if self.line is not None:
            place += f":{self.line}"
            if self.column is not None:
                place += f":{self.column}"
        return f"{place}: {self.message}"


@dataclass(frozen=True)
class SourceFile:
    """The text of one file and how to turn a changed text back into bytes.

    Attributes:
        path: where the text came from.
        data: the bytes as read.
        text: the decoded text without a byte order mark, newlines untouched.
        encoding: a codec's name; ``utf-8-sig`` when the file starts with a byte order mark.
    """

    path: Path
    data: bytes
    text: str
    encoding: str

    def encode(self, text: str) -> bytes:
        """Return ``text`` as bytes in this file's encoding, with its byte order mark if it had one."""
        try:
            return text.encode(self.encoding)
        except UnicodeEncodeError as error:
            character = error.object[error.start]
            line = text.count("\n", 0, error.start) + 1
            message = f"the new text holds {character!r}, which {self.encoding} cannot express"
            raise SourceError(self.path, message, line) from error


def read_source(path: Path) -> SourceFile:
    """Read ``path`` in its own encoding.

    Raises:
        SourceError: the file cannot be read or decoded, or is very large.
    """
    return source_from_bytes(read_bytes(path, MAX_BYTES), path)


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """Return what a file holds.

    Raises:
        SourceError: it cannot be read, or holds more than ``limit`` bytes.
    """
    try:
        if limit is not None and path.stat().st_size > limit:
            raise SourceError(path, f"is larger than {limit // 1_000_000} MB, which is too much to be analysed")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise SourceError(path, "no such file") from error
    except IsADirectoryError as error:
        raise SourceError(path, "is a directory, not a file") from error
    except PermissionError as error:
        raise SourceError(path, "cannot be read: permission denied") from error
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror or error}") from error


def source_from_bytes(data: bytes, path: Path) -> SourceFile:
    """Decode ``data`` as Python would: byte order mark, then PEP 263 declaration, then UTF-8.

    Raises:
        SourceError: the bytes are no text in that encoding.
    """
    if b"\0" in data:
        kind = "it looks like UTF-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "it looks like a binary file"
        line = len(_NEWLINE.findall(data, 0, data.index(b"\0"))) + 1
        raise SourceError(path, f"holds null bytes; {kind}", line)
    encoding, declared = _detect_encoding(data, path)
    try:
        text = data.decode(encoding)
        exact = text.encode(encoding) == data
    except UnicodeDecodeError as error:
        raise _undecodable(data, path, error, declared) from error
    except (UnicodeError, LookupError, TypeError, ValueError) as error:
        raise SourceError(path, f"cannot be read as {encoding}, the encoding it declares", 1) from error
    if not exact:
        # Writing such a file back would change lines that nobody asked to change.
        raise SourceError(path, f"does not survive a round trip through {encoding}; save it as UTF-8 first")
    return SourceFile(path, data, text, encoding)


def parse_source(source: SourceFile) -> ast.Module:
    """Parse a file, telling Python 2 apart from other syntax errors.

    Raises:
        SourceError: the text is not Python 3, or is nested too deeply for Python's own parser.
    """
    try:
        with warnings.catch_warnings():
            # An invalid escape in the user's string is not this program's to report.
            warnings.simplefilter("ignore")
            tree = ast.parse(source.text, filename=str(source.path))
    except SyntaxError as error:
        raise syntax_source_error(source, error) from error
    except (RecursionError, MemoryError) as error:
        raise SourceError(source.path, TOO_DEEP_MESSAGE) from error
    except ValueError as error:
        # Lone surrogates and the like, which the decoder let through.
        raise SourceError(source.path, f"cannot be parsed: {error}") from error
    if sys.version_info < (3, 11) and depth_exceeds(tree, _MAX_DEPTH):
        # Newer parsers refuse such code themselves; LibCST's parser would overflow the stack and crash.
        raise SourceError(source.path, TOO_DEEP_MESSAGE)
    return tree


def syntax_source_error(source: SourceFile, error: SyntaxError) -> SourceError:
    """Turn Python's own complaint about ``source`` into a message for the user."""
    if _is_python2(source.text, error):
        return SourceError(source.path, PYTHON2_MESSAGE, error.lineno)
    # Python counts columns from 1 and says 0 or nothing where it knows none.
    return SourceError(source.path, f"syntax error: {error.msg}", error.lineno, error.offset or None)


def depth_exceeds(tree: ast.AST, limit: int) -> bool:
    """Whether the tree has more than ``limit`` levels."""
    level = [tree]
    for _ in range(limit):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True


def _is_python2(text: str, error: SyntaxError) -> bool:
    if error.msg.startswith(_PYTHON2_MESSAGES):
        return True
    if error.lineno is None:
        return False
    lines = re.split(r"\r\n|\r|\n", text)
    if not 1 <= error.lineno <= len(lines):
        return False
    return _PYTHON2_LINE.search(lines[error.lineno - 1]) is not None


def _detect_encoding(data: bytes, path: Path) -> tuple[str, bool]:
    """Return the encoding of ``data`` and whether the file says so itself."""
    # Only the first two lines matter, and Python ends them at a lone carriage return too.
    # The declaration itself is ASCII; what else stands on its line is in the encoding that it declares.
    head = iter([_LEGACY.sub(b"?", line) + b"\n" for line in _NEWLINE.split(data, maxsplit=2)[:2]])
    try:
        encoding, read = tokenize.detect_encoding(lambda: next(head, b""))
    except SyntaxError as error:
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as undecodable:
            if "unknown encoding" not in error.msg:
                raise _undecodable(data, path, undecodable, declared=False) from error
        raise SourceError(path, error.msg.split(" for ")[0], 1) from error
    cookie = any(re.match(rb"^[ \t\f]*#.*?coding[:=]", line) for line in read)
    return encoding, cookie or encoding == "utf-8-sig"


def _undecodable(data: bytes, path: Path, error: UnicodeDecodeError, declared: bool) -> SourceError:
    line = len(_NEWLINE.findall(data, 0, error.start)) + 1
    byte = f"0x{data[error.start]:02x}"
    if declared:
        name = error.encoding.upper()
        return SourceError(path, f"declares {name} but holds the byte {byte}, which is not {name}", line)
    message = (
        f"holds the byte {byte}, which is not UTF-8, and declares no encoding; save it as UTF-8, "
        "or declare its encoding in the first line, as in '# -*- coding: latin-1 -*-'"
    )
    return SourceError(path, message, line)
