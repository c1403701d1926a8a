"""Unified diffs that ``git apply`` accepts, made of bytes so that no encoding is lost."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import AnyStr, NamedTuple

from amp_migrate.git import git_root

_NO_NEWLINE = b"\\ No newline at end of file\n"
CONTEXT = 3
"""Unchanged lines that are shown around a change."""
# So many pairs of equal lines (of blank lines, mostly) take an exact comparison about a second.
_EXACT_PAIRS = 2_000_000

_ESCAPES = {7: b"a", 8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r", 34: b'"', 92: b"\\"}

_BOLD, _CYAN, _RED, _GREEN, _RESET = b"\x1b[1m", b"\x1b[36m", b"\x1b[31m", b"\x1b[32m", b"\x1b[m"
# On a terminal a control character from somebody's file is shown and not obeyed.
_VISIBLE = {code: f"^{chr(code ^ 64)}" for code in (*range(32), 127) if chr(code) not in "\t\n"}
_VISIBLE |= {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}


class ChangedLines(NamedTuple):
    """Lines ``old_start`` to ``old_stop`` become lines ``new_start`` to ``new_stop``, counted from 0."""

    old_start: int
    old_stop: int
    new_start: int
    new_stop: int


def unified_diff(name: bytes, before: bytes, after: bytes) -> bytes:
    """Return the diff of one file as ``git diff`` would print it; empty where nothing changed.

    ``name`` is the path with forward slashes, relative to where the diff will be applied.
    """
    if before == after:
        return b""
    old, new = quoted(b"a/" + name), quoted(b"b/" + name)
    # Git ends a name that holds a blank with a tab, lest the rest be taken for a date.
    end = b"\t\n" if b" " in name else b"\n"
    lines = [b"diff --git " + old + b" " + new + b"\n", b"--- " + old + end, b"+++ " + new + end]
    lines += _hunks(_split(before), _split(after))
    return b"".join(lines)


def cell_diff(name: bytes, number: int, before: str, after: str) -> bytes:
    """Return the diff of one cell of the notebook ``name``, for people: git has no names for cells."""
    old, new = (_ended(text.encode("utf-8", "surrogatepass")) for text in (before, after))
    label = b"%s:cell %d" % (name, number)
    lines = [b"--- " + quoted(b"a/" + label) + b"\n", b"+++ " + quoted(b"b/" + label) + b"\n"]
    return b"".join([*lines, *_hunks(_split(old), _split(new))])


def _ended(data: bytes) -> bytes:
    """Return lines of which the last one ends; that of a cell seldom does, and nothing depends on it."""
    return data if data.endswith(b"\n") or not data else data + b"\n"


def quoted(name: bytes) -> bytes:
    """Quote a path as git does: C escapes in double quotes, only where needed."""
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in name):
        return name
    parts = []
    for byte in name:
        if byte in _ESCAPES:
            parts.append(b"\\" + _ESCAPES[byte])
        elif 32 <= byte < 127:
            parts.append(bytes([byte]))
        else:
            parts.append(b"\\%03o" % byte)
    return b'"' + b"".join(parts) + b'"'


def names(paths: list[Path]) -> Mapping[Path, bytes]:
    """Return for every path the name that its diff carries.

    It is relative to the git work tree that the file lies in, else to the working directory, else (for files
    elsewhere) to the folder that all of those have in common; git refuses names that lead upwards.
    """
    bases: dict[Path, Path] = {}
    elsewhere: list[Path] = []
    cwd = Path.cwd()
    for path in paths:
        root = git_root(path)
        if root is not None:
            bases[path] = root
        elif path.is_relative_to(cwd):
            bases[path] = cwd
        else:
            elsewhere.append(path)
    for path in elsewhere:
        same_drive = [other.parent for other in elsewhere if other.anchor == path.anchor]
        bases[path] = Path(os.path.commonpath(same_drive))
    return {path: os.fsencode(path.relative_to(base).as_posix()) for path, base in bases.items()}


def coloured(diff: bytes) -> bytes:
    """Return ``diff`` with the terminal colours that git uses."""
    lines = _split(diff)
    head = next((number for number, line in enumerate(lines) if line.startswith(b"@@")), 0)
    return b"".join(_coloured_line(line, number < head) for number, line in enumerate(lines))


def for_terminal(diff: bytes, encoding: str) -> str:
    """Decode the diff of one file for people, with control characters made visible."""
    if encoding == "utf-8-sig":
        encoding = "utf-8"
    return diff.decode(encoding, "replace").replace("\r\n", "\n").translate(_VISIBLE)


def _split(data: bytes) -> list[bytes]:
    """Split at line feeds only: to git a form feed or a lone carriage return is part of a line."""
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def _hunks(old: list[bytes], new: list[bytes]) -> Iterator[bytes]:
    for group in grouped(changes(old, new)):
        lead = min(CONTEXT, group[0].old_start)
        trail = min(CONTEXT, len(old) - group[-1].old_stop)
        at = group[0].old_start - lead
        old_range = _range(at, group[-1].old_stop + trail)
        new_range = _range(group[0].new_start - lead, group[-1].new_stop + trail)
        yield b"@@ -%s +%s @@\n" % (old_range, new_range)
        for change in group:
            yield from (_marked(b" ", line) for line in old[at : change.old_start])
            yield from (_marked(b"-", line) for line in old[change.old_start : change.old_stop])
            yield from (_marked(b"+", line) for line in new[change.new_start : change.new_stop])
            at = change.old_stop
        yield from (_marked(b" ", line) for line in old[at : at + trail])


def changes(old: Sequence[AnyStr], new: Sequence[AnyStr]) -> Iterator[ChangedLines]:
    """Yield the ranges of lines that differ, in order."""
    # Equal lines at both ends would only slow the matcher down.
    start = _common_prefix(old, new)
    end = _common_prefix(old[start:][::-1], new[start:][::-1])
    old_part, new_part = old[start : len(old) - end], new[start : len(new) - end]
    old_counts, new_counts = Counter(old_part), Counter(new_part)
    # Beyond that, difflib's shortcut through frequent lines is good enough.
    shortcut = sum(count * new_counts[line] for line, count in old_counts.items()) > _EXACT_PAIRS
    matcher = difflib.SequenceMatcher(None, old_part, new_part, autojunk=shortcut)
    for tag, *ends in matcher.get_opcodes():
        if tag != "equal":
            yield ChangedLines(*(start + number for number in ends))


def grouped(found: Iterable[ChangedLines]) -> Iterator[list[ChangedLines]]:
    """Gather the changes whose context would touch."""
    group: list[ChangedLines] = []
    for change in found:
        if group and change.old_start - group[-1].old_stop > 2 * CONTEXT:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _common_prefix(old: Sequence[AnyStr], new: Sequence[AnyStr]) -> int:
    count = 0
    for left, right in zip(old, new, strict=False):
        if left != right:
            break
        count += 1
    return count


def _range(start: int, stop: int) -> bytes:
    length = stop - start
    if length == 1:
        return b"%d" % (start + 1)
    # An empty range names the line before it.
    return b"%d,%d" % (start + 1 if length else start, length)


def _marked(mark: bytes, line: bytes) -> bytes:
    return mark + line if line.endswith(b"\n") else mark + line + b"\n" + _NO_NEWLINE


def _coloured_line(line: bytes, is_head: bool) -> bytes:
    if is_head:
        colour = _BOLD
    elif line.startswith(b"@@"):
        colour = _CYAN
    elif line.startswith(b"-"):
        colour = _RED
    elif line.startswith(b"+"):
        colour = _GREEN
    else:
        return line
    return colour + line.removesuffix(b"\n") + _RESET + b"\n"
