"""The condition without which the script trains, and the runtime is given no level: ``AMP_OPT_LEVEL`` is read there."""

from __future__ import annotations

import ast

from amp_rules.flow.statements import is_main_guard
from amp_rules.plan.kept_levels import STARTS
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling

_MAX_CALLERS = 4
"""Functions that call one another on the way to a start; what asks for the level stands near it."""


def level_condition(program: Program) -> str:
    """The condition under which every start of the runtime stands, and not every training step; empty if there is none.

    Args:
        program: the program without Apex.
    """
    starts = [_conditions(program, site, frozenset()) for site in program.calls_to(STARTS)]
    steps = [_conditions(program, site, frozenset()) for site in program.backwards]
    if not starts or not steps:
        return ""
    shared = frozenset.intersection(*map(frozenset, steps))
    # The test that stands nearest is the one that is about the level.
    return next((text for text in starts[0] if text not in shared and all(text in item for item in starts)), "")


def _conditions(program: Program, site: Site, seen: frozenset[ast.AST]) -> list[str]:
    """The conditions that hold on every way to a place, the nearest first, as far as ``if`` says them."""
    found = []
    child = site.node
    for node in site.module.ancestors(site.node):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            break
        if isinstance(node, ast.If) and child is not node.test and not is_main_guard(node):
            found.append(site.module.text(node.test) if child in node.body else _opposite(site, node.test))
        child = node
    info = program.function_of(site.body)
    if info is None or info.node in seen or len(seen) > _MAX_CALLERS:
        return found
    ways = [_conditions(program, calling(item), seen | {info.node}) for item in program.flow.callers(info)]
    return [*found, *(text for text in ways[0] if all(text in way for way in ways))] if ways else found


def _opposite(site: Site, test: ast.expr) -> str:
    """What holds where a condition does not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return site.module.text(test.operand)
    text = site.module.text(test)
    return f"not {text}" if isinstance(test, (ast.Name, ast.Attribute, ast.Call)) else f"not ({text})"
