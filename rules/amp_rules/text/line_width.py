"""How long the lines of a file may be, and arguments and entries that would make one longer."""

from __future__ import annotations

import ast
from itertools import pairwise

from amp_rules.source.modules import Module
from amp_rules.text.actions import ExpressionEdit
from amp_rules.text.expression_edits import add_entry, add_keyword, either

_WIDTHS = (79, 88, 100, 120)
"""Widths that projects agree on. Any file has room for the first; beyond, no line of a file says more than its own."""
_ENOUGH = 3
"""So many lines that are longer than one width mean the next: a single one may be an exception."""


def width_of(module: Module, longest: int = 0) -> int:
    """How long a line may be: as the longest of some of its kind, or as long as several lines of the file are."""
    found = max(_WIDTHS[0], min(longest, _WIDTHS[-1]))
    for less, width in pairwise(_WIDTHS):
        if sum(less < len(row) <= width for row in module.lines) >= _ENOUGH:
            found = max(found, width)
    return found


def keyword_within(module: Module, call: ast.Call, code: str) -> ExpressionEdit:
    """``f(a)`` becomes ``f(a, code)``; where the line has no room, below the first argument.

    Where that is too far to the right, all arguments go to lines of their own, further to the left.
    Below the line of the last argument, where it begins, if the call has several lines.
    """
    (line, _), (end_line, _) = module.start(call), module.end(call)
    row = module.lines[line - 1]
    first = next(iter([*call.args, *call.keywords]), None)
    last = max([*call.args, *call.keywords], key=module.start, default=None)
    if last is not None and module.start(last)[0] > line and module.end(last)[0] == module.start(last)[0] == end_line:
        row = module.lines[end_line - 1]
        is_full = len(row.rstrip()) + len(f", {code}") > width_of(module) and not row.startswith("\t")
        return add_keyword(code, below=len(row) - len(row.lstrip())) if is_full else add_keyword(code)
    if first is None or line != end_line or module.start(first)[0] != line:
        return add_keyword(code)
    # What stands below an argument is aligned with spaces, which a file that is indented with tabs has none of.
    if len(row.rstrip()) + len(f", {code}") <= width_of(module) or row.startswith("\t"):
        return add_keyword(code)
    column, indent = module.start(first)[1], len(row) - len(row.lstrip())
    behind = len(row.rstrip()) - module.end(last)[1] if last is not None else 0
    is_wide = column + len(code) + behind > _WIDTHS[-1]
    if is_wide and indent + _HANGING < column:
        return add_keyword(code, below=indent + _HANGING, is_hanging=True)
    return add_keyword(code, below=column)


_HANGING = 8
"""How far arguments are indented that have no room beside the bracket: further than what a block holds."""


def entry_within(module: Module, made: ast.Dict, code: str) -> ExpressionEdit:
    """``{k: v}`` becomes ``{k: v, code}``; where the line has no room, below the first entry."""
    first = next((key for key in made.keys if key is not None), None)
    row = module.lines[module.end(made.values[-1])[0] - 1]
    if first is None or len(row.rstrip()) + len(f", {code}") <= width_of(module) or row.startswith("\t"):
        return add_entry(code)
    return add_entry(code, below=module.start(first)[1])


def either_within(module: Module, node: ast.expr, test: str, other: str) -> ExpressionEdit:
    """``x = y`` becomes ``x = y if test else other``; where the line has no room, three lines in parentheses."""
    row = module.lines[module.start(node)[0] - 1]
    added = len(f" if {test} else {other}")
    is_value = isinstance(module.parents[node], ast.Assign) and module.start(node)[0] == module.end(node)[0]
    if not is_value or len(row.rstrip()) + added <= width_of(module):
        return either(test, other)
    margin = row[: len(row) - len(row.lstrip())]
    return either(test, other, (margin + ("\t" if margin.startswith("\t") else "    "), margin))
