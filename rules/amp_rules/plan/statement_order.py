"""Which of two statements of a body comes first."""

from __future__ import annotations

import ast

from amp_rules.source import blocks
from amp_rules.source.modules import Module

_HEADS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith)
"""Statements whose head runs before their body."""


def comes_after(module: Module, read: ast.stmt, write: ast.stmt, within: ast.stmt | None = None) -> bool:
    """Whether one statement of a body can run after another one of it.

    Args:
        module: the file.
        read: the statement that may come later.
        write: the other one.
        within: a statement around both; what the loops around it repeat does not count.
    """
    reads, writes = _line(module, read), _line(module, write)
    if within is not None:
        if within not in reads or within not in writes:
            return False
        reads = reads[: reads.index(within) + 1]
    if any(isinstance(item, blocks.LOOPS) for item in reads if item in writes):
        return True
    later, earlier = _branches(module, read, write)
    return later is not earlier and _is_below(module, later, earlier) and not _ends(module, write, earlier)


def _ends(module: Module, statement: ast.stmt, around: ast.stmt) -> bool:
    """Whether what runs a statement within another always returns before that ends."""
    inner = statement
    for outer in blocks.enclosing(module, statement):
        if inner is around or isinstance(outer, ast.Try):
            return False
        where = blocks.place(module, inner)
        if any(isinstance(item, ast.Return) for item in where.suite[where.index :]):
            return True
        inner = outer
    return False


def _branches(module: Module, one: ast.stmt, other: ast.stmt) -> tuple[ast.stmt, ast.stmt]:
    """The statements around two of a body at which they part."""
    ones, others = _line(module, one)[::-1], _line(module, other)[::-1]
    for first, second in zip(ones, others, strict=False):
        if first is not second:
            return first, second
    return one, other


def between(module: Module, read: ast.stmt, change: ast.stmt) -> list[ast.stmt]:
    """The statements from a read to a change below it, or within it where the read is its head; none elsewhere.

    A read that fails goes on in the handlers of its ``try``: only their statements lie between then.
    """
    first, last = _branches(module, read, change)
    if first is not last and _is_below(module, last, first):
        if _ends(module, read, first):
            return []
        where, start = blocks.place(module, last), blocks.place(module, first)
        if start.suite == where.suite:
            return list(where.suite[start.index : where.index + 1])
        fails = isinstance(where.parent, ast.ExceptHandler)
        return [*(() if fails else start.suite[start.index :]), *where.suite[: where.index + 1]]
    if isinstance(read, _HEADS) and read is not change and read in _line(module, change):
        inner = _line(module, change)
        where = blocks.place(module, inner[inner.index(read) - 1])
        return list(where.suite[: where.index + 1])
    return []


def _is_below(module: Module, later: ast.stmt, earlier: ast.stmt) -> bool:
    """Whether a statement stands below another one of the same suite, or in a part of a ``try`` that runs after its."""
    where = blocks.place(module, later)
    if earlier in where.suite[: where.index]:
        return True
    one, other = _part_of_try(module, earlier), _part_of_try(module, later)
    return one is not None and other is not None and one[0] is other[0] and one[1] < other[1]


def _part_of_try(module: Module, statement: ast.stmt) -> tuple[ast.AST, int] | None:
    """The ``try`` in a part of which a statement stands, and when that part runs."""
    parent = module.parents[statement]
    if isinstance(parent, ast.ExceptHandler):
        return module.parents[parent], 1
    if not isinstance(parent, ast.Try):
        return None
    return parent, 0 if statement in parent.body else 1 if statement in parent.orelse else 2


def _line(module: Module, statement: ast.stmt) -> list[ast.stmt]:
    """A statement and those around it within its body, the nearest first."""
    return [statement, *blocks.enclosing(module, statement)]
