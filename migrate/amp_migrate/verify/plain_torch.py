"""A version in plain PyTorch that reads its level from ``AMP_OPT_LEVEL``, as ``--target torch`` writes it.

It needs nothing from outside to compute in float32. Its half type is one line in each file, ``AMP_DTYPE = ...``, which
chooses by the device or names one. What a GPU would compute in is so run on a CPU, too: the same text with the choice
made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TYPE = re.compile(rb"\b(b?)float16\b")
_LINE = re.compile(rb"^\w*AMP_DTYPE\w* *= *([^\r\n]*)", re.MULTILINE)
_CHOICE = re.compile(rb"^(\w*AMP_DTYPE\w* *= *)(\S+) if [^\r\n]+ else (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class PlainTorch:
    """What is known of such a version.

    Attributes:
        types: the half types that it names: ``"fp16"``, ``"bf16"``.
        choosing: the files that choose one of two by the device.
    """

    types: frozenset[str] = frozenset()
    choosing: tuple[Path, ...] = ()

    def usual(self, device: str) -> str | None:
        """The half type that it computes in on a device; None where it names none."""
        if self.choosing or len(self.types) > 1:
            return "bf16" if device == "cpu" else "fp16"
        return next(iter(self.types), None)

    def can_compute_in(self, half_type: str) -> bool:
        """Whether it can be had in a type."""
        return half_type in self.types and (bool(self.choosing) or len(self.types) == 1)


def look_at(texts: Iterable[tuple[Path, bytes]]) -> PlainTorch:
    """Look over the files of a version."""
    types: set[str] = set()
    choosing = []
    for path, text in texts:
        for line in _LINE.findall(text):
            types.update("bf16" if letter else "fp16" for letter in _TYPE.findall(line))
        if _CHOICE.search(text):
            choosing.append(path)
    return PlainTorch(frozenset(types), tuple(sorted(choosing)))


def in_type(text: bytes, half_type: str) -> bytes:
    """The text of a file with its choice made."""

    def chosen(line: re.Match[bytes]) -> bytes:
        for option in line.groups()[1:]:
            named = _TYPE.search(option)
            if named is not None and half_type == ("bf16" if named[1] else "fp16"):
                return line[1] + option
        return line[0]

    return _CHOICE.sub(chosen, text)
