"""Files that an argument of the call which reads them writes: ``Rows(make_csv())``, ``unpack(path).iterdir()``.

No statement lies between the two, before which the processes could wait: they wait in the function that writes.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from amp_rules.roles.file_effects import FileEffect
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue)

Ways = Mapping[ast.AST, Sequence[Site]]
"""The statements, by their bodies, that lead to a call."""


def is_within(reads: Ways, writes: Ways) -> bool:
    """Whether a run comes to the write in an expression that the call which leads to the read is given."""
    return any(
        write.node is not read.node and any(node is write.node for node in walk(read.node))
        for body in reads.keys() & writes.keys()
        for read in reads[body]
        for write in writes[body]
    )


def behind(effect: FileEffect) -> ast.stmt | None:
    """The statement of the function that writes before which the file is there; None where there is none."""
    module, found = effect.module, effect.statement
    if effect.keeps_open and not isinstance(found, ast.With):
        return None  # further calls write to it
    for outer in [found, *blocks.enclosing(module, found)]:
        where = blocks.place(module, outer)
        later = where.suite[where.index + 1 :]
        if where.parent is effect.body or (later and isinstance(later[-1], ast.Return)):
            return later[0] if later else None
        if any(isinstance(node, _LEAVES) for item in later for node in blocks.walk_own(item)):
            return None
    return None
