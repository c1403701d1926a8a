"""What the front end knows of the rules: plain data, so that a cached run need not import them."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from amp_rules.lattice.mode import DEVICES, HALF_TYPES, LEVELS, Mode
from amp_rules.lint.finding import Safety, Severity

_DIMENSIONS: tuple[Sequence[str], ...] = (LEVELS, HALF_TYPES, DEVICES)
_MODES = tuple(str(Mode(*parts)) for parts in itertools.product(LEVELS, HALF_TYPES, DEVICES))


@dataclass(frozen=True)
class RuleInfo:
    """One rule, as :class:`amp_rules.lint.check.Check` describes it.

    Attributes:
        modes: the modes in which it can find anything, as :class:`Mode` writes them, without several processes unless
            it needs them.
    """

    code: str
    name: str
    severity: Severity
    message: str
    advice: str = ""
    fix_title: str = ""
    fix_safety: Safety | None = None
    preview: bool = False
    page: str = ""
    modes: tuple[str, ...] = ()

    @property
    def modes_text(self) -> str:
        """The modes in few words: ``all``, ``O2 O3``, ``fp16 cuda``."""
        return _summary(self.modes)


UNUSED_SUPPRESSION = RuleInfo(
    code="AMP980",
    name="unused-suppression",
    severity="info",
    message="A suppression comment suppresses nothing.",
    advice="Remove the comment, or correct its codes.",
    fix_title="remove the comment",
    fix_safety="safe",
    page=inspect.cleandoc(
        """Suppressions that suppress nothing.

        ## What it does
        Finds `# amp: ignore` comments that hide no finding in the mode of the run, and codes in them that no rule has.

        ## Why
        The code was fixed, or the comment is on the wrong line; either way it would hide the next finding there.

        ## Before
            loss = F.cross_entropy(model(x), y)  # amp: ignore[AMP601]

        ## After
            loss = F.cross_entropy(model(x), y)

        ## When it declines
        For codes that were not asked for in this run, and for `# noqa`, which belongs to other tools as well.
        """
    ),
    modes=_MODES,
)


def load_rules() -> tuple[RuleInfo, ...]:
    """Import every rule and return what is known of it, by code."""
    from amp_rules.checks import all_checks

    rules = [UNUSED_SUPPRESSION]
    for check in all_checks():
        modes = []
        for parts in itertools.product(LEVELS, HALF_TYPES, DEVICES):
            if check.applies(mode := Mode(*parts)) or check.applies(mode := Mode(*parts, ddp=True)):
                modes.append(str(mode))
        rules.append(
            RuleInfo(
                code=check.code,
                name=check.name,
                severity=check.severity,
                message=check.message,
                advice=check.advice,
                fix_title=check.fix_title,
                fix_safety=check.fix_safety,
                preview=bool(check.preview),
                page=inspect.cleandoc(check.page),
                modes=tuple(modes),
            )
        )
    return tuple(sorted(rules, key=lambda rule: rule.code))


def _summary(modes: Sequence[str]) -> str:
    """Shorten a set of modes to the words that tell it apart."""
    rows = [mode.split() for mode in modes]
    if not rows:
        return "none"
    used = [_distinct(row[index] for row in rows) for index in range(len(_DIMENSIONS))]
    if len(rows) != math.prod(len(words) for words in used):
        return _by_level(rows)
    told = [words for words, known in zip(used, _DIMENSIONS, strict=True) if len(words) < len(known)]
    ddp = ["ddp"] if all("ddp" in row for row in rows) else []
    return " ".join([*itertools.chain(*told), *ddp]) or "all"


def _by_level(rows: Sequence[Sequence[str]]) -> str:
    """The same for modes that differ from level to level: ``O1 cpu; O2 O3``."""
    levels: dict[str, list[str]] = {}
    for level in _distinct(row[0] for row in rows):
        there = [row for row in rows if row[0] == level]
        rest = [_distinct(row[index] for row in there) for index in (1, 2)]
        told = [words for words, known in zip(rest, _DIMENSIONS[1:], strict=True) if len(words) < len(known)]
        levels.setdefault(" ".join(itertools.chain(*told)), []).append(level)
    return "; ".join(f"{' '.join(names)} {text}".strip() for text, names in levels.items())


def _distinct(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))
