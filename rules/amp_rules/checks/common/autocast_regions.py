"""Autocast regions: where they begin, and what statements could be moved out of them."""

from __future__ import annotations

import ast

from amp_rules.checks.common.calls import own_name_of
from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lint.finding import Fix, TextEdit
from amp_rules.source.syntax import last_name
from amp_rules.torch.frameworks import OTHER_PACKAGES


def is_region(context: Value) -> bool:
    """Whether a context manager is an autocast region: torch's own or that of Accelerate and the like."""
    if context.op == "autocast":
        return True
    called = context.args[0].sym if context.args else None
    if called is not None and called.partition(".")[0] in OTHER_PACKAGES:
        return False
    function = getattr(context.node, "func", None)
    return isinstance(function, ast.Attribute) and function.attr == "autocast" and context.op in ("method", "call")


def region_around(frame: Frame) -> Value | None:
    """The autocast region that the present statement is in; None where the innermost is turned off."""
    for context in reversed(frame.contexts):
        if is_region(context):
            return None if frame.machine.autocast_enabled(context) is False else context
    return None


def decorated(frame: Frame) -> bool:
    """Whether the whole function is an autocast region."""
    function = frame.function
    if function is None:
        return False
    return any(name.endswith((".autocast", "autocast")) for name, _ in function.decorators) and frame.autocast


def with_of(frame: Frame, context: Value) -> ast.With | None:
    """The statement of a region, where it stands in this function."""
    root = frame.function.node if frame.function is not None else frame.module.module.tree
    for item in ast.walk(root):
        if isinstance(item, ast.With) and any(_is_made_by(frame, part.context_expr, context) for part in item.items):
            return item
    return None


_EMPTY = "nullcontext"


def _is_made_by(frame: Frame, given: ast.expr, context: Value) -> bool:
    """Whether an expression is a region, or a name that is given it and no other: ``region = autocast(...)``."""
    if given is context.node:
        return True
    values = frame.module.index.values_of(given) if isinstance(given, ast.Name) else []
    parts = [part for item in values for part in ((item.body, item.orelse) if isinstance(item, ast.IfExp) else (item,))]
    regions = [item for item in parts if not (isinstance(item, ast.Call) and own_name_of(frame.module, item) == _EMPTY)]
    return bool(regions) and all(item is context.node for item in regions)


_STEP = frozenset("backward step update unscale_ zero_grad".split())


def move_out(frame: Frame, region: ast.With, node: ast.AST) -> Fix | None:
    """A fix that puts the end of a region, from the statement of ``node`` on, behind it.

    Only where that end is nothing but the calls of a training step, one a line, and no comment would be left behind.
    """
    index = next((i for i, item in enumerate(region.body) if any(part is node for part in ast.walk(item))), 0)
    tail = region.body[index:]
    if index == 0 or not all(_is_step(item) for item in tail) or _has_comments(frame, region.body[index - 1], tail[-1]):
        return None
    edits = [TextEdit("remove", frame.span(item)) for item in tail]
    # Whatever is put behind a statement first stands first.
    edits += [TextEdit("insert after", frame.span(region), _with_comment(frame, item)) for item in tail]
    return Fix("Move the backward pass out of the region", "unsafe", tuple(edits))


def _has_comments(frame: Frame, before: ast.stmt, last: ast.stmt) -> bool:
    """Whether comments stand on lines of their own between two statements."""
    rows = frame.module.module.lines[(before.end_lineno or before.lineno) : last.end_lineno]
    return any(row.lstrip().startswith("#") for row in rows)


def _with_comment(frame: Frame, item: ast.stmt) -> str:
    """The text of a statement of one line, with the comment behind it."""
    module = frame.module.module
    (line, column), (_, end) = module.start(item), module.end(item)
    row = module.lines[line - 1]
    return row[column:].rstrip() if row[end:].lstrip().startswith("#") else row[column:end]


def _is_step(item: ast.stmt) -> bool:
    if not isinstance(item, ast.Expr) or item.lineno != item.end_lineno or not isinstance(item.value, ast.Call):
        return False
    function = item.value.func
    return last_name(function) in _STEP or last_name(function).startswith("clip_grad")
