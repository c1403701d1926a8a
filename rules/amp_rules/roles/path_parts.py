"""Parts of paths, as texts with ``*`` for what is not known: folders, names, extensions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from amp_rules.roles.gapped_texts import UNKNOWN

_EXTENSION = re.compile(r"\.\w+$")


def above(text: str) -> str:
    """The folder of a path whose own name is known."""
    folder, _, name = text.rstrip("/").rpartition("/")
    return folder if folder and name and not name.startswith(UNKNOWN) else UNKNOWN


def _folder(text: str) -> str:
    return above(text) if "/" in text or UNKNOWN in text else ""


def _name(text: str) -> str:
    name = text.rpartition("/")[2]
    return name if name and not name.startswith(UNKNOWN) else UNKNOWN


def _without_extension(text: str) -> str:
    return _EXTENSION.sub("", text) if _EXTENSION.search(text) or UNKNOWN not in text else UNKNOWN


def _extension(text: str) -> str:
    found = _EXTENSION.search(text)
    return found[0] if found is not None else UNKNOWN if UNKNOWN in text else ""


PARTS: Mapping[str, Callable[[str], str]] = {"os.path.dirname": _folder, "os.path.basename": _name}
"""Functions that give a part of a path."""

SPLITS: Mapping[tuple[str, object], Callable[[str], str]] = {
    ("os.path.split", 0): _folder,
    ("os.path.split", 1): _name,
    ("os.path.splitext", 0): _without_extension,
    ("os.path.splitext", 1): _extension,
}
"""The same by functions that give two, and which of them is taken."""
