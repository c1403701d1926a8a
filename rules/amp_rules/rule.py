"""What a rule is: a code of the shared scheme, a name, a sentence, a page of documentation.

The scheme: AMP1xx precision, AMP2xx distributed, AMP3xx optimizers, AMP4xx Apex, AMP5xx old PyTorch, AMP6xx
and up the linter's families. Within a family, x9x are the reasons for which a rewrite declines."""

from __future__ import annotations

import re
from dataclasses import dataclass

from amp_rules.report import Unit

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
    """

    code: str
    name: str
    message: str
    unit: Unit
    page: str = ""
    optional: bool = False

    def __post_init__(self) -> None:
        if not _CODE.fullmatch(self.code):
            raise ValueError(f"a rule's code is AMP and three digits, not {self.code!r}")
