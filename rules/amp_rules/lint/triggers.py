"""Finds, without parsing, the lines that a rule could be about."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from amp_rules.source.facts import ModuleFacts

Trigger = str | re.Pattern[str]
_NEWLINE = re.compile(r"\r\n|\r|\n")
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(?:torch|apex)\b[\w.]*[ \t]+)?import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE)
_WORD = re.compile(r"\w+")
_DEFINITION = re.compile(r"\n(?:def|class) ")
_RENAMED = re.compile(r"([\w.]+)[ \t]+as[ \t]+(\w+)")
_FUNCTIONAL = "torch.nn.functional"
"""Nearly every file calls it ``F``, and no trigger holds more of its name than the functions in it."""


class Triggers:
    """Texts and patterns to look for; plain texts are found at the speed of memory."""

    def __init__(self, wanted: Iterable[Trigger]) -> None:
        unique = dict.fromkeys(wanted)
        self.texts = [item for item in unique if isinstance(item, str)]
        self.patterns = [item for item in unique if not isinstance(item, str)]
        self._words = [max(_WORD.findall(item), key=len, default="") for item in self.texts]

    def __iter__(self) -> Iterator[Trigger]:
        return iter([*self.texts, *self.patterns])

    def lines(self, text: str) -> list[int]:
        """The lines, from 1 and sorted, on which one of them begins."""
        return sorted({line for lines in self.places(text).values() for line in lines})

    def places(self, text: str) -> dict[Trigger, list[int]]:
        """The lines, from 1 and sorted, on which each of those begins that occur at all."""
        found: dict[Trigger, list[int]] = {}
        # A file holds each of its words many times, and most triggers not at all.
        words = " ".join(set(_WORD.findall(text)))
        for item, word in zip(self.texts, self._words, strict=True):
            start = text.find(item) if word in words else -1
            if start < 0:
                continue
            starts: list[int] = []
            found[item] = starts
            while start >= 0:
                starts.append(start)
                # What follows on the same line adds nothing.
                start = text.find("\n", start)
                start = text.find(item, start) if start >= 0 else -1
        for pattern in self.patterns:
            starts = [match.start() for match in pattern.finditer(text)]
            if starts:
                found[pattern] = starts
        if not found:
            return found
        if "\r" in text:
            heads = [0, *(match.end() for match in _NEWLINE.finditer(text))]
        else:
            heads = [0, *accumulate(len(row) + 1 for row in text.split("\n"))]
        return {item: [bisect_right(heads, place) for place in places] for item, places in found.items()}


def in_torchs_words(text: str) -> str:
    """The text with what its head imports from torch and Apex called as it is there, line by line.

    Triggers are such names. What is imported farther down is not looked for: that would take as long as the triggers.
    """
    head = text[: (definition := _DEFINITION.search(text)) and definition.start()]
    if " as " not in head:
        return text
    names: dict[str, str] = {}
    for line in _IMPORT.finditer(head):
        of_torch = line[0].lstrip().startswith("from")
        for there, here in _RENAMED.findall(line[1]):
            if there.rpartition(".")[2] == here or there == _FUNCTIONAL:
                continue
            if of_torch or there.partition(".")[0] in ("torch", "apex"):
                names[here] = there
    if not names:
        return text
    used = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, names))})(?!\w)(?![ \t]*=[^=])")
    return used.sub(lambda found: names[found[0]], text)


class TriggerPlaces:
    """Where triggers stand in a text.

    Args:
        found: the lines of each, as :meth:`Triggers.places` gives them.

    Attributes:
        triggers: those that occur at all.
    """

    def __init__(self, found: Mapping[Trigger, list[int]]) -> None:
        self.triggers = found.keys()
        places = [(line, trigger) for trigger, lines in found.items() for line in lines]
        places.sort(key=_line)
        self._lines = [line for line, _ in places]
        self._triggers = [trigger for _, trigger in places]

    def __bool__(self) -> bool:
        return bool(self._lines)

    def inside(self, node: ast.AST) -> set[Trigger]:
        """The triggers in the text of ``node``."""
        first, last = _extent(node)
        return set(self._triggers[bisect_left(self._lines, first) : bisect_right(self._lines, last)])


def _line(place: tuple[int, Trigger]) -> int:
    return place[0]


def concerned(module: ModuleFacts, triggers: Triggers) -> frozenset[str]:
    """The names of the functions of a file that hold a trigger, and of those that call one of these."""
    places = triggers.lines(in_torchs_words(module.module.source.text))
    if not places:
        return frozenset()
    found: set[str] = set()
    calls: dict[str, set[str]] = {}
    for function in module.all_functions():
        node = function.node
        if within(places, node):
            found.add(function.name)
        called = calls.setdefault(function.name, set())
        for item in ast.walk(node):
            if isinstance(item, ast.Call) and isinstance(item.func, (ast.Name, ast.Attribute)):
                called.add(item.func.id if isinstance(item.func, ast.Name) else item.func.attr)
    while True:
        further = {name for name, called in calls.items() if name not in found and called & found}
        if not further:
            return frozenset(found)
        found |= further


def within(lines: list[int], node: ast.AST) -> bool:
    """Whether one of the sorted ``lines`` is in the text of ``node``."""
    first, last = _extent(node)
    index = bisect_left(lines, first)
    return index < len(lines) and lines[index] <= last


def _extent(node: ast.AST) -> tuple[int, int]:
    """The first and the last line of a node, decorators included."""
    first: int = getattr(node, "lineno", 1)
    last: int = getattr(node, "end_lineno", None) or first
    decorators = getattr(node, "decorator_list", None)
    return (min(first, decorators[0].lineno), last) if decorators else (first, last)
