"""Whether models are in evaluation mode where a loop runs them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.plan.evaluation.assignments import Unclear
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks

_MAX_CALLERS = 6
"""Callers of callers in which ``eval()`` is looked for; evaluations are three or four deep."""


def check_modes(program: Program, site: Site) -> None:
    """Every model must be in evaluation mode: batch norm that trains would learn from its own batches alone."""
    inner = [node for item in getattr(site.node, "body", []) for node in blocks.walk_own(item)]
    for node in inner:
        if not isinstance(node, ast.Call) or not program.runs_forward(node):
            continue
        if not program.forwards(node, site.scope) and not program.flow.callees(node):
            continue  # what is given its output: ``len(model(x))``
        models = program.called_models(node, site.scope)
        if not is_evaluating(program, site, models):
            raise Unclear(node, f"`eval()` is not called before `{site.module.text(node)}`")


def is_evaluating(program: Program, site: Site, models: set[Value], seen: frozenset[ast.AST] = frozenset()) -> bool:
    """Whether a statement before, on every way to a place, puts the models into evaluation mode, and none after.

    Args:
        site: the place.
        models: the models; empty for any.
        seen: the functions that were gone through.
    """
    for suite, index in _around(site):
        for item in reversed(suite[:index]):
            nodes = list(blocks.walk_own(item))
            modes = [mode for node in nodes if (mode := _mode(program, node, site, models)) is not None]
            if modes:
                return not modes[-1] and isinstance(item, (ast.Expr, ast.With, ast.For, ast.Assign))
            if any(_set_by(node) for called in program.called_from(nodes) for node in blocks.walk_body(called)):
                return False
    info = program.function_of(site.body)
    if info is None or site.body in seen or len(seen) > _MAX_CALLERS:
        return False
    callers = [calling(caller) for caller in program.flow.callers(info)]
    return bool(callers) and all(is_evaluating(program, caller, models, seen | {site.body}) for caller in callers)


def _mode(program: Program, node: ast.AST, site: Site, models: set[Value]) -> bool | None:
    """Whether a call puts one of the models into training mode; None where it is about no mode of theirs."""
    mode = _set_by(node)
    if mode is None:
        return None
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    asked = program.roles.modules(node.func.value, site.scope)
    return None if models and asked and models.isdisjoint(asked) else mode


def _around(site: Site) -> Iterator[tuple[tuple[ast.stmt, ...], int]]:
    inner: ast.stmt = site.statement
    for parent in [*blocks.enclosing(site.module, inner), None]:
        where = blocks.place(site.module, inner)
        yield where.suite, where.index
        if parent is None:
            return
        inner = parent


def _set_by(node: ast.AST) -> bool | None:
    """Whether a call puts a model into training mode; None where it is about no mode."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr == "eval" and not node.args:
        return False
    if node.func.attr == "train" and len(node.args) <= 1:
        value = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else True
        return bool(value)
    return None
