"""What a note says of functions with a backward pass of their own that compute in float32 now: which they are."""

from __future__ import annotations

from amp_rules.plan.listing import listed
from amp_rules.plan.report import Report

_CODE = "AMP111"
_NAMED = 3
"""Functions that a note names; the others are counted."""


def in_float32(report: Report, where: str) -> str:
    """The end of a sentence that names them, with ``where`` they did not before; nothing where there are none.

    Others of the program may stay as they are: those that nothing runs, and those that take any types.
    """
    edits = [edit for edit in report.edits if edit.code == _CODE]
    names = list(dict.fromkeys(f"`{edit.message.partition('`')[2].partition('`')[0]}`" for edit in edits))
    if not names:
        return ""
    several = len(names) > 1
    kind = "functions with backward passes of their own," if several else "a function with a backward pass of its own,"
    return f"; {listed(names, _NAMED)}, {kind} {'compute' if several else 'computes'} in float32 (AMP111), {where}"
