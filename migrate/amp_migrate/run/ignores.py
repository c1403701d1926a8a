"""Ignore files as git reads them.

What a pattern means is pathspec's to say. Each path is asked about by itself while its folder is walked, as git does: a
pattern that matches a folder says nothing about what is in it, which is simply never reached. pathspec's own answer for
whole paths differs from git's here: it takes a folder in again for what is in it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from amp_migrate.git import common_folder, git_root, global_excludes

# In a set of characters git knows classes and escaped brackets, and pathspec does not.
_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \t",
    "digit": "0-9",
    "lower": "a-z",
    "punct": ":-@[-`{-~!-.",
    "space": " \t",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
_CLASS = re.compile(r"\[:(\w+):\]")
_SET = re.compile(r"\[(?P<negation>[!^]?)(?P<members>(?:\[:\w+:\]|\\.|[^\]\\])+)\]")
# The group by which pathspec marks that a pattern matched a folder above the path, and not the path itself.
_ABOVE = "ps_d"


@dataclass(frozen=True)
class _Pattern:
    ignores: bool
    folders_only: bool
    regex: re.Pattern[str]

    def matches(self, relative: str) -> bool:
        """Whether it means the very path, which has no slash at its end."""
        match = self.regex.search(relative)
        return match is not None and match.groupdict().get(_ABOVE) is None


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
            if pattern.matches(relative):
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
    """Return what a line says, or None for a comment, an empty line, and what git takes for no pattern."""
    if not line.strip() or line.startswith("#"):
        # Said without pathspec, whose import takes longer than a run that finds all in its cache.
        return None
    from pathspec import GitIgnoreSpec

    line = line.rstrip("\r")
    line = line if line.endswith("\\ ") else line.rstrip(" ")
    folders_only = line.endswith("/")
    line = _SET.sub(_plain_set, line.removesuffix("/"))
    try:
        with warnings.catch_warnings():
            # Python warns of "[[" in a set, which means nothing special in a glob.
            warnings.simplefilter("ignore", FutureWarning)
            (pattern,) = GitIgnoreSpec.from_lines([line]).patterns
    except (ValueError, re.error):
        return None
    if pattern.include is None or pattern.regex is None:
        return None
    return _Pattern(pattern.include, folders_only, pattern.regex)


def _plain_set(found: re.Match[str]) -> str:
    """Write a set of characters without classes and escaped brackets; a bracket that comes first ends no set."""
    members = _CLASS.sub(lambda named: _CLASSES.get(named[1], ""), found["members"])
    rest = members.replace(r"\]", "")
    bracket = "]" if rest != members else ""
    return f"[{found['negation']}{bracket}{rest}]"
