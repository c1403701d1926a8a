"""Which names a text reads where they may not be bound."""

from __future__ import annotations

import ast

from amp_rules.plan.draft_check.binding import reads_of


def unbound_names(text: str) -> set[str]:
    """The names that some statement of a text reads, and that are not bound there on every path.

    Of a text on its way from one that is sound, a name that is among them now, and was not, has lost its binding.
    """
    return {name for names in reads_of(ast.parse(text), None).open.values() for name in names}
