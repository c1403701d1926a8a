"""Tests that a script asks before it lets one of its processes on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import in_several, is_first_device, names_rank
from amp_rules.source.index import literal
from amp_rules.source.syntax import last_name, walk


def certain_parts(test: ast.expr, holds: bool) -> Iterator[tuple[ast.expr, bool]]:
    """The tests that come out for certain with one of several: all of ``a and b``, none of ``a or b``."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from certain_parts(test.operand, not holds)
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is holds:
        yield from (row for item in test.values for row in certain_parts(item, holds))
    else:
        yield test, holds


def is_of_first(test: ast.expr, holds: bool) -> bool:
    """Whether a test that asks for the rank lets the first process on where it comes out like this, and no other."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return is_of_first(test.operand, not holds)
    if isinstance(test, ast.BoolOp):
        asking = [item for item in test.values if asks_which(item) and in_several(item) is None]
        asking = [item for item in asking if not _asks_for_launcher(item)]
        found = [is_of_first(item, holds) for item in asking]
        return any(found) if isinstance(test.op, ast.And) is holds else bool(found) and all(found)
    if isinstance(test, ast.Compare):
        op, number = test.ops[0], literal(test.comparators[0])
        if isinstance(op, (ast.Is, ast.IsNot)) and number is None and last_name(test.left) in _NUMBERS:
            return False  # every process has a rank: this asks whether there are several
        if isinstance(op, (ast.Is, ast.IsNot)) and number is None:
            return isinstance(op, ast.IsNot) is holds  # a writer that the first process alone has
        # ``rank <= 0``: -1 stands for one process.
        bounds = {(ast.LtE, 0): True, (ast.Lt, 1): True, (ast.Gt, 0): False, (ast.GtE, 1): False}
        if isinstance(number, int) and (type(op), number) in bounds:
            return bounds[type(op), number] is holds
        return len(test.ops) == 1 and isinstance(op, (ast.Eq, ast.In) if holds else (ast.NotEq, ast.NotIn))
    return holds


_NUMBERS = frozenset({"rank", "local_rank", "global_rank", "node_rank", "world_size", "proc_id", "process_index"})
"""What the number of a process, or how many there are, is called."""


def asks_which(test: ast.expr) -> bool:
    """Whether a test is about which process this is: its rank, or the number of its GPU."""
    return names_rank(test) or any(isinstance(part, ast.Compare) and is_first_device(part) for part in walk(test))


def says_no_launcher(test: ast.expr, holds: bool) -> bool:
    """Whether no launcher has started the process where a test comes out like this: ``"RANK" in os.environ`` fails."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return says_no_launcher(test.operand, not holds)
    if isinstance(test, ast.BoolOp):
        found = [says_no_launcher(item, holds) for item in test.values]
        return any(found) if isinstance(test.op, ast.And) is holds else all(found)
    return _asks_for_launcher(test) and isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn) is holds


def _asks_for_launcher(test: ast.expr) -> bool:
    """``"RANK" not in os.environ``: whether a launcher has set it."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Constant)
        and isinstance(test.ops[0], (ast.In, ast.NotIn))
        and last_name(test.comparators[0]) == "environ"
    )
