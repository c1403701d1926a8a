"""Ignore files as git reads them.

Each path is asked about by itself while its folder is walked, as git does: a pattern that matches a folder says nothing
about what is in it, which is simply never reached. Libraries that match whole paths differ from git here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from amp_migrate.git import common_folder, git_root, global_excludes

_POSIX = {
    "alnum": r"a-zA-Z0-9",
    "alpha": r"a-zA-Z",
    "blank": r" \t",
    "digit": r"0-9",
    "lower": r"a-z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\s",
    "upper": r"A-Z",
    "xdigit": r"0-9A-Fa-f",
}
_TRAILING_SPACES = re.compile(r"(?<!\\)((?:\\\\)*) +$")


@dataclass(frozen=True)
class _Pattern:
    ignores: bool
    folders_only: bool
    name_only: bool
    regex: re.Pattern[str]


@dataclass(frozen=True)
class Rules:
    """The patterns of one file, relative to ``folder``."""

    folder: Path
    patterns: Sequence[_Pattern]

    def verdict(self, path: Path, is_folder: bool) -> bool | None:
        """Return True for ignored, False for taken in again, None for not mentioned."""
        try:
            relative = path.relative_to(self.folder).as_posix()
        except ValueError:
            return None
        for pattern in reversed(self.patterns):
            if pattern.folders_only and not is_folder:
                continue
            if pattern.regex.fullmatch(path.name if pattern.name_only else relative):
                return pattern.ignores
        return None


def is_ignored(path: Path, is_folder: bool, rules: Sequence[Rules]) -> bool:
    """Whether git ignores a path whose folder it does not ignore; ``rules`` come innermost first."""
    verdicts = (rule.verdict(path, is_folder) for rule in rules)
    return next((verdict for verdict in verdicts if verdict is not None), False)


def rules_above(folder: Path) -> tuple[Rules, ...]:
    """Return the rules that hold in ``folder`` without standing in it, innermost first."""
    root = git_root(folder / "any")
    if root is None:
        return ()
    rules = rules_of_repository(root)
    current = root
    for name in folder.relative_to(root).parts:
        rules = (*rules_in(current), *rules)
        current /= name
        if is_ignored(current, True, rules):
            # The user named a folder that git ignores: what ignores it says nothing about what is in it.
            return ()
    return rules


def rules_of_repository(root: Path) -> tuple[Rules, ...]:
    """Return the rules that hold for a whole repository and stand in no ``.gitignore``."""
    common = common_folder(root)
    files = [common / "info" / "exclude"] if common is not None else []
    if (excludes := global_excludes(root)) is not None:
        files.append(excludes)
    return tuple(rule for file in files for rule in _rules_from(file, root))


def rules_in(folder: Path) -> tuple[Rules, ...]:
    """Return the rules of the folder's own ``.gitignore``, if it has one."""
    return _rules_from(folder / ".gitignore", folder)


def _rules_from(file: Path, folder: Path) -> tuple[Rules, ...]:
    try:
        # A pipe would be waited for.
        text = file.read_text(encoding="utf-8-sig", errors="surrogateescape") if file.is_file() else ""
    except OSError:
        return ()
    patterns = [pattern for line in text.split("\n") if (pattern := _pattern(line)) is not None]
    return (Rules(folder, patterns),) if patterns else ()


@lru_cache(maxsize=4096)
def _pattern(line: str) -> _Pattern | None:
    line = _TRAILING_SPACES.sub(r"\1", line.removesuffix("\r"))
    if not line or line.startswith("#"):
        return None
    ignores = not line.startswith("!")
    line = line if ignores else line[1:]
    folders_only = line.endswith("/")
    line = line[:-1] if folders_only else line
    name_only = "/" not in line
    line = line.removeprefix("/")
    regex = _translated(line) if line else None
    return None if regex is None else _Pattern(ignores, folders_only, name_only, regex)


def _translated(glob: str) -> re.Pattern[str] | None:
    """Return the regular expression of a pattern, or None where it can match nothing."""
    parts: list[str] = []
    index = 0
    while index < len(glob):
        char = glob[index]
        if char == "*":
            end = index
            while end < len(glob) and glob[end] == "*":
                end += 1
            at_start = index == 0 or glob[index - 1] == "/"
            if end - index == 2 and at_start and glob[end : end + 1] == "/":
                parts.append("(?:.*/)?")
                end += 1
            elif end - index == 2 and at_start and end == len(glob):
                parts.append(".*")
            else:
                parts.append("[^/]*")
            index = end
            continue
        if char == "[":
            found = _bracket(glob, index)
            if found is None:
                return None
            part, index = found
            parts.append(part)
            continue
        if char == "\\":
            index += 1
            if index == len(glob):
                return None
            char = glob[index]
            parts.append(re.escape(char))
        else:
            parts.append("[^/]" if char == "?" else re.escape(char))
        index += 1
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error:
        return None


def _bracket(glob: str, start: int) -> tuple[str, int] | None:
    """Translate the set that begins at ``start``; return it with the index behind it, or None if it has no end."""
    index = start + 1
    negated = glob[index : index + 1] in ("!", "^")
    index += negated
    members = ""
    first = True
    while index < len(glob):
        char = glob[index]
        if char == "]" and not first:
            return f"(?!/)[{'^' if negated else ''}{members}]", index + 1
        first = False
        if glob.startswith("[:", index) and (end := glob.find(":]", index)) > 0:
            members += _POSIX.get(glob[index + 2 : end], "")
            index = end + 2
            continue
        if char == "\\" and index + 1 < len(glob):
            index += 1
            char = glob[index]
            members += re.escape(char)
        else:
            members += char if char == "-" else re.escape(char)
        index += 1
    return None
