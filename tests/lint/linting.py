"""How fixtures of checks are read and run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from amp_rules.checks import all_checks
from amp_rules.lint import Finding, Linter, Mode
from amp_rules.source.text import read_source, source_from_bytes

FIXTURES = Path(__file__).parent.parent.parent / "fixtures" / "checks"
_EXPECT = re.compile(r"#\s*expect:\s*(.*)$")


@dataclass(frozen=True)
class Case:
    """One fixture: ``fires_*.py`` with ``# expect: CODE`` at the end of lines, or ``silent_*.py``.

    The first line may be ``# mode: O3 bf16 cpu ddp``, in which each part may be left out.
    """

    path: Path

    def __str__(self) -> str:
        return f"{self.code}/{self.path.stem}"

    @property
    def code(self) -> str:
        return self.path.parent.name

    @property
    def fires(self) -> bool:
        return self.path.name.startswith("fires_")

    @property
    def text(self) -> str:
        return read_source(self.path).text

    @property
    def mode(self) -> Mode:
        return mode_of(self.text)

    @property
    def expected(self) -> list[int]:
        found = []
        for number, line in enumerate(self.text.split("\n"), 1):
            match = _EXPECT.search(line)
            if match:
                found += [number for code in match[1].replace(",", " ").split() if code == self.code]
        return found

    @property
    def fixed(self) -> Path:
        """What every fix of the rule makes of it."""
        return self.path.parent / "fixed" / self.path.name


def mode_of(text: str) -> Mode:
    match = re.match(r"#\s*mode:\s*(.*)", text)
    words = match[1].split() if match else []
    level = next((word for word in words if word in ("O1", "O2", "O3")), "O1")
    dtype = next((word for word in words if word in ("fp16", "bf16")), "fp16")
    device = next((word for word in words if word in ("cuda", "cpu")), "cuda")
    return Mode(level, dtype, device, "ddp" in words)


def cases() -> list[Case]:
    found = [*FIXTURES.glob("AMP*/fires_*.py"), *FIXTURES.glob("AMP*/silent_*.py")]
    return [Case(path) for path in sorted(found)]


@lru_cache(maxsize=64)
def linter(mode: Mode, code: str) -> Linter:
    return Linter(mode, all_checks(), {check.code for check in all_checks()} if code == "ALL" else {code})


def findings(path: Path, mode: Mode, code: str) -> list[Finding]:
    return list(linter(mode, code).lint(read_source(path)).findings)


def findings_in(text: str, code: str, mode: Mode | None = None) -> list[Finding]:
    """What one rule finds in a text, judged in ``mode`` or in that of its first line."""
    mode = mode or mode_of(text)
    path = Path("/nowhere/module.py")
    return list(Linter(mode, all_checks(), {code}).lint(source_from_bytes(text.encode(), path)).findings)
