"""Known bugs as data, and where their lines went in the version that is mended: what ``lint_recall.py`` measures on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

NEAR = 2
"""A finding so many lines beside a wrong one is on it."""
LONGEST = 10
"""A finding on more lines than this is about what begins there."""


@dataclass(frozen=True)
class Found:
    """One finding of the linter."""

    code: str
    first: int
    last: int
    message: str

    def near(self, lines: Iterable[int], by: int = NEAR) -> bool:
        last = self.last if self.last - self.first < LONGEST else self.first
        return any(self.first - by <= line <= last + by for line in lines)

    def on(self, lines: Iterable[int]) -> bool:
        return self.near(lines, 0)


@dataclass(frozen=True)
class Bug:
    """Lines of a commit that are wrong, or (a decoy, without a fix) look so."""

    repo: str
    commit: str
    path: str
    lines: tuple[int, ...]
    rules: frozenset[str]
    modes: tuple[str, ...]
    fixed: str = ""
    fixed_path: str = ""
    bug_class: str = "decoy"
    decided_by: str = "file"
    mended: bool = True
    """Whether the fix mends these lines: some mend less than they say, and a finding there is right."""

    def __str__(self) -> str:
        return f"{self.repo}@{self.commit[:8]} {self.path}:{','.join(map(str, self.lines))}"


@dataclass
class Verdict:
    """What the linter made of a bug, by mode."""

    hits: dict[str, list[Found]] = field(default_factory=dict)
    others: dict[str, list[Found]] = field(default_factory=dict)
    loud: dict[str, list[Found]] = field(default_factory=dict)
    problems: set[str] = field(default_factory=set)

    @property
    def found(self) -> bool:
        return any(self.hits.values())

    @property
    def silent(self) -> bool:
        return not any(self.loud.values())


def bug_from(facts: dict[str, Any]) -> Bug:
    """A bug or a decoy as the file tells it."""
    path = facts["path"]
    return Bug(
        repo=facts["repo"],
        commit=facts.get("buggy_commit") or facts["commit"],
        path=path,
        lines=tuple(facts["lines"]),
        rules=frozenset(facts["rules"]),
        modes=tuple(map(full_mode, facts["modes"])),
        fixed=facts.get("fixed_commit", ""),
        fixed_path=facts.get("fixed_path", path),
        bug_class=facts.get("bug_class", "decoy"),
        decided_by=facts.get("decided_by", "file"),
        mended=facts.get("mended", True),
    )


def full_mode(text: str) -> str:
    """A mode as it is written in full; ``ddp`` alone is the default mode with several processes."""
    words = text.split()
    level = next((word for word in words if word in ("O1", "O2", "O3")), "O1")
    half = "bf16" if "bf16" in words else "fp16"
    device = "cpu" if "cpu" in words else "cuda"
    return " ".join([level, half, device, *(["ddp"] if "ddp" in words else [])])


def corresponding(before: Sequence[str], after: Sequence[str], lines: Iterable[int]) -> set[int]:
    """The lines of ``after`` that stand where ``lines`` of ``before`` stood, both counted from 1."""
    wanted, found = {line - 1 for line in lines}, set[int]()
    for tag, first, last, to_first, to_last in difflib.SequenceMatcher(None, before, after, False).get_opcodes():
        inside = wanted & set(range(first, last))
        if tag == "equal":
            found |= {line - first + to_first for line in inside}
        elif inside:
            # What was taken away leaves the place where it stood.
            found |= set(range(to_first, to_last)) or {to_first}
    return {line + 1 for line in found}


def is_another(item: Found, others: Iterable[Found], before: Sequence[str], after: Sequence[str]) -> bool:
    """Whether a finding in the fixed version is one of ``others``, those of the buggy version that are not the bug."""
    origin = corresponding(after, before, [item.first])
    if {before[line - 1] for line in origin if line <= len(before)} != {after[item.first - 1]}:
        return False
    return any(old.code == item.code and old.first in origin for old in others)
