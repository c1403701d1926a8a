"""What a rule is: a code of the shared scheme, a name, a sentence, a page of documentation.

The scheme: AMP1xx precision, AMP2xx distributed, AMP3xx optimizers, AMP4xx Apex, AMP5xx old PyTorch, AMP6xx
and up the linter's families. Within a family, x9x are the reasons for which a rewrite declines, and x8x what is noted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from amp_rules.plan.report import Unit

EVERY_OTHER = "*"
"""In :attr:`Rule.after`: all others, but those that name this one themselves, and those that come last."""

_CODE = re.compile(r"AMP[1-9]\d\d")


@dataclass(frozen=True)
class Rule:
    """One rewrite or one reason for declining.

    Attributes:
        code: as in ``AMP103``.
        name: as in ``scaled-backward``.
        message: one sentence that says what it does.
        unit: the unit of the migration that it belongs to.
        page: its documentation, from the module's docstring.
        optional: whether a program is right without it, so that it can be left out alone; else the whole unit is
            declined with it. The page says why, under "Leaving it out".
        together: whether its changes within a file hang together: all of them stay, or none.
        after: codes of the rewrites that come first, or :data:`EVERY_OTHER`; this one sees what they did.
        last: whether it comes when it is settled what all others do, and sees that alone.
        ways: in which of its folder's ``WAYS``, if there are several, the rewrite takes part.
        shared: whether both units rest on it, so that whoever asks for one of them asks for it.
        only_asked: whether what it replaces still runs on a current PyTorch: ``--modernize`` alone does it, not the
            default for a script that uses Apex.
    """

    code: str
    name: str
    message: str
    unit: Unit
    page: str = ""
    optional: bool = False
    together: bool = False
    after: tuple[str, ...] = ()
    last: bool = False
    ways: tuple[str, ...] = ()
    shared: bool = False
    only_asked: bool = False

    def __post_init__(self) -> None:
        if not _CODE.fullmatch(self.code):
            raise ValueError(f"a rule's code is AMP and three digits, not {self.code!r}")
