"""Which of two statements of a body comes first."""

from __future__ import annotations

import ast

from amp_rules.source import blocks
from amp_rules.source.modules import Module


def comes_after(module: Module, read: ast.stmt, write: ast.stmt) -> bool:
    """Whether one statement of a body can run after another one of it."""
    shared = [item for item in _line(module, read) if item in _line(module, write)]
    if any(isinstance(item, blocks.LOOPS) for item in shared):
        return True
    later, earlier = _branches(module, read, write)
    return later is not earlier and _is_below(module, later, earlier)


def _branches(module: Module, one: ast.stmt, other: ast.stmt) -> tuple[ast.stmt, ast.stmt]:
    """The statements around two of a body at which they part."""
    ones, others = _line(module, one)[::-1], _line(module, other)[::-1]
    for first, second in zip(ones, others, strict=False):
        if first is not second:
            return first, second
    return one, other


def between(module: Module, read: ast.stmt, change: ast.stmt) -> list[ast.stmt]:
    """The statements from a read to a change below it, or within it where the read is its condition; none elsewhere."""
    first, last = _branches(module, read, change)
    if first is not last and _is_below(module, last, first):
        where = blocks.place(module, first)
        return list(where.suite[where.index : where.suite.index(last) + 1])
    if isinstance(read, ast.If) and read is not change and read in _line(module, change):
        inner = _line(module, change)
        where = blocks.place(module, inner[inner.index(read) - 1])
        return list(where.suite[: where.index + 1])
    return []


def _is_below(module: Module, later: ast.stmt, earlier: ast.stmt) -> bool:
    """Whether a statement stands below another one of the same suite."""
    where = blocks.place(module, later)
    return earlier in where.suite[: where.index]


def _line(module: Module, statement: ast.stmt) -> list[ast.stmt]:
    """A statement and those around it within its body, the nearest first."""
    return [statement, *blocks.enclosing(module, statement)]
