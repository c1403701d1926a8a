"""Files that an argument of the call which reads them writes: ``Rows(make_csv())``.

No statement lies between the two, before which the processes could wait: they wait in the function that writes.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from amp_rules.roles.file_effects import FileEffect
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import COMPREHENSIONS, walk

_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue)

Ways = Mapping[ast.AST, Sequence[Site]]
"""The statements, by their bodies, that lead to a call."""


def is_within(reads: Ways, writes: Ways) -> bool:
    """Whether a run comes to the write in an expression that the call which leads to the read is given.

    Or in what a comprehension iterates that makes the read: ``[Rows(path) for path in make()]``.
    """
    for body in reads.keys() & writes.keys():
        written = {write.node for write in writes[body]}
        if any(node in written for read in reads[body] for item in _before(read) for node in walk(item)):
            return True
    return False


def _before(read: Site) -> list[ast.AST]:
    around = [item for item in read.module.ancestors(read.node) if isinstance(item, COMPREHENSIONS)]
    first = [item.generators[0].iter for item in around]
    return [
        *ast.iter_child_nodes(read.node),
        *(item for item in first if all(node is not read.node for node in walk(item))),
    ]


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
