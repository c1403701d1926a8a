"""Which torch a project asks for: new code needs a current one, and an older one would not even import it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from amp_rules.plan.report import FileChange
from amp_rules.source.project import project_root

NEEDED = (2, 4)
"""The oldest torch that the runtime takes, and that has all of ``torch.amp``."""

_OF_CONDA = re.compile(r"^[\w.-]+=[\w.!]+=\w+\s*$|^@EXPLICIT\b", re.M)
"""A line of a list that ``conda list --export`` writes, and ``conda create --file`` reads: ``torch=1.6.0=py3_0``."""
_OF_ENVIRONMENT = re.compile(r"^dependencies\s*:", re.MULTILINE)
"""The key of an ``environment.yml`` that lists conda's packages, and pip's in a list of its own below ``pip:``."""
_LIST_FOR_PIP = re.compile(r"^\s*-\s*pip\s*:", re.MULTILINE)
_FILES = re.compile(r"(requirements|env|conda).*\.(txt|ya?ml|in)|setup\.(py|cfg)|pyproject\.toml|Pipfile", re.I)
_FOLDER = "requirements"
_MAX_SIZE = 200_000
_PIN = re.compile(
    r"""(?<![\w.-])(?:py)?torch["']?\s*((?:(?:===?|~=|[<>]=?|!=|=)\s*["']?[\^~=]*[\d.]+[\w.*+]*["']?,?\s*)+)"""
)
_WHEEL = re.compile(r"(?<![\w.-])torch-(\d+(?:\.\d+)+)[\w.%+-]*\.whl")
"""The file that a requirement by address names: ``torch @ https://host/torch-2.1.0%2Bcu118-cp311-linux_x86_64.whl``."""
_TORCH = re.compile(r"""^[^#\n]*(?<![\w.-])(?:py)?torch(?![\w.-])""", re.MULTILINE)
_OF_PIPFILE = re.compile(r"""^["']?torch["']?\s*=""", re.MULTILINE)
_PRESENT_NAMES = (
    (re.compile(r"\bcustom_[fb]wd\b"), (2, 4)),
    (re.compile(r"\bGradScaler\b"), (2, 3)),
    (re.compile(r"\bautocast\b"), (1, 12)),
)
"""The torch since which ``torch.amp`` has each of its names, the newest first."""
_RUNTIME = re.compile(r"amp[-_](?:runtime|migrate)")
_LOWER = re.compile(r"""(?<![<!=~])>=?\s*["']?(\d+(?:\.\d+)*)""")
_BOUND = re.compile(r"""(===?|~=|<=?|(?<![<>!=~])=)\s*["']?([\^~]?)=*(\d+(?:\.\d+)*)""")


class Asked(NamedTuple):
    """A line that asks for an older torch than is needed, or takes one, too."""

    path: Path
    line: int
    text: str


def lacks_runtime(entry: Path) -> Path | None:
    """The first file of a script's project that lists torch, where none lists the runtime, which the script needs now.

    A project that has such files but names torch in none of them has it from elsewhere, and the runtime too. One that
    has a copy of the runtime needs no other.
    """
    root = project_root(entry.resolve())
    texts = dict(_texts(root))
    if any((folder / "amp_runtime").is_dir() for folder in (root, entry.resolve().parent)):
        return None
    if any(_RUNTIME.search(text) for text in texts.values()):
        return None
    return next((path for path, text in texts.items() if _lists_torch(path, text)), None)


def _lists_torch(path: Path, text: str) -> bool:
    """Whether a file lists torch among what it requires: an index's name and address in a ``Pipfile`` do not."""
    return (_OF_PIPFILE if path.name == "Pipfile" else _TORCH).search(text) is not None


def takes_lines_of_pip(path: Path) -> bool:
    """Whether a file of requirements takes the lines that pip does, ``-e folder`` among them."""
    return path.suffix.lower() in (".txt", ".in", ".yml", ".yaml")


def _text_of(path: Path) -> str:
    """What a file says; nothing where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def is_list_of_conda(path: Path) -> bool:
    """Whether a file lists what conda alone reads, by name, version and build."""
    return _OF_CONDA.search(_text_of(path)) is not None


def is_environment_of_conda(path: Path) -> bool:
    """Whether a file describes an environment for conda, which takes what pip installs below ``- pip:`` alone."""
    return path.suffix.lower() in (".yml", ".yaml") and _OF_ENVIRONMENT.search(_text_of(path)) is not None


def has_list_for_pip(path: Path) -> bool:
    """Whether an environment for conda has a list for pip already."""
    return _LIST_FOR_PIP.search(_text_of(path)) is not None


def needed_by_names(changes: Iterable[FileChange]) -> tuple[int, int]:
    """The oldest torch whose ``torch.amp`` has all that new lines of a program name."""
    new = [line for change in changes for line in set(change.after.split("\n")) - set(change.before.split("\n"))]
    return next((version for name, version in _PRESENT_NAMES if any(map(name.search, new))), NEEDED)


def asked_older(entry: Path, needed: tuple[int, int] = NEEDED) -> Asked | None:
    """The first requirement of a script's project that keeps torch below a version; None where nothing does."""
    return _first(entry, lambda bounds: any(_is_older(bound, needed) for bound in _BOUND.finditer(bounds)))


def takes_older(entry: Path, needed: tuple[int, int]) -> Asked | None:
    """The first requirement whose lower bound lets an older torch than a version in; None where one does not."""
    return _first(entry, lambda bounds: any(_numbers(bound[1]) < needed for bound in _LOWER.finditer(bounds)))


def _first(entry: Path, is_asked: Callable[[str], bool]) -> Asked | None:
    root = project_root(entry.resolve())
    for path, text in _texts(root):
        for number, line in enumerate(text.splitlines(), start=1):
            found = _PIN.search(line.split("#")[0])
            if found is not None and is_asked(found[1]):
                return Asked(path, number, found[0].strip(" \t,\"'"))
            wheel = _WHEEL.search(line.split("#")[0])
            if wheel is not None and is_asked(f"=={wheel[1]}"):
                return Asked(path, number, wheel[0])
    return None


def _texts(root: Path) -> Iterator[tuple[Path, str]]:
    """What the files say that list requirements."""
    for path in _requirements(root):
        try:
            yield path, path.read_text(encoding="utf-8", errors="replace") if path.stat().st_size <= _MAX_SIZE else ""
        except OSError:
            continue


def _requirements(root: Path) -> Iterator[Path]:
    for folder in (root, root / _FOLDER):
        try:
            names = sorted(folder.iterdir())
        except OSError:
            continue
        yield from (path for path in names if _FILES.fullmatch(path.name) or folder.name == _FOLDER)


def _is_older(bound: re.Match[str], needed: tuple[int, int]) -> bool:
    """Whether a bound keeps out every torch that is new enough: ``==1.7``, ``<2.3``, ``~=2.1.0``, ``^1.13``."""
    operator, prefix, version = bound[1], bound[2], _numbers(bound[3])
    if operator == "<":
        return version <= needed
    if prefix == "^" or (operator == "~=" and len(version) == 2):
        return version[0] < needed[0]
    return version[:2] < needed if len(version) > 1 else version[0] < needed[0]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
