"""Lines that start the migrated scripts, edited in their files: the older launcher goes, torchrun takes its place.

Only lines that say how many processes there are, as an older launcher or ``CUDA_VISIBLE_DEVICES=0,1`` does, and of
which nothing is left to decide. The words that start the script are replaced, and nothing else in the file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from amp_rules.source.text import SourceFile

from amp_migrate.launch.launches import Launch

_BETWEEN = r"(?:[ \t]|\\\r?\n[ \t]*)+"
"""What separates words: blanks, and line ends that a backslash continues."""


def edited(launches: Sequence[Launch]) -> dict[Path, tuple[SourceFile, str, list[Launch]]]:
    """For each file that can be edited: what it holds, its new text, and the launches that this takes in."""
    by_file: defaultdict[Path, list[Launch]] = defaultdict(list)
    for launch in launches:
        if launch.edits:
            by_file[launch.path.resolve()].append(launch)
    found: dict[Path, tuple[SourceFile, str, list[Launch]]] = {}
    for path, some in by_file.items():
        try:
            data = path.read_bytes()
            text = data.decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        after, done = _with_edits(text, some)
        if done:
            found[path] = SourceFile(path, data, text, "utf-8"), after, done
    return found


def _with_edits(text: str, launches: Sequence[Launch]) -> tuple[str, list[Launch]]:
    """The text with all edits of each launch, or none of those whose words are not found where they should be."""
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    replacements: dict[tuple[int, int], str] = {}
    done: list[Launch] = []
    for launch in launches:
        at = starts[launch.line - 1]
        spans: dict[tuple[int, int], str] = {}
        for old, new in launch.edits:
            match = re.compile(_BETWEEN.join(map(re.escape, old.split()))).search(text, at)
            if match is None or _line_of(text, match.start()) > launch.line + _continued(text, starts[launch.line - 1]):
                break
            spans[match.span()] = new
            at = match.end()
        else:
            # Two commands of one line are found one by one.
            if not any(_overlap(span, other) for span in spans for other in replacements if span != other):
                replacements |= spans
                done.append(launch)
    for (first, last), new in sorted(replacements.items(), reverse=True):
        text = text[:first] + new + text[last:]
    return text, done


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _continued(text: str, start: int) -> int:
    """How many more lines the one that begins there goes on for."""
    match = re.compile(r"(?:.*\\\r?\n)*").match(text, start)
    return match[0].count("\n") if match else 0


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]
