"""Tests that leave out ``scaler.update()`` in a turn of a loop that has called ``scaler.unscale_``."""

from __future__ import annotations

import ast

from amp_rules.lattice.paths import is_about_precision
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import Branch, FileIndex, Loop, before


def skips_update(module: ModuleFacts, unscale: ast.Call, updates: list[ast.Call]) -> tuple[ast.Call, Branch] | None:
    """An update, and the test on which all of them hang and which comes out either way after ``unscale_``.

    Where the test is the only one in the loop, or counts, the way from one turn to the next tells as much (AMP813).
    """
    index = module.index
    holder = unscale.func.value  # type: ignore[attr-defined]
    scaler, scope = ast.unparse(holder), index.scope(unscale)
    if isinstance(holder, ast.Name) and scope is not None:
        updates = [item for item in updates if index.scope(item) is scope]
    loop = next(iter(index.loops_around(unscale)), None)
    if (
        loop is None
        or not updates
        or not all(loop in index.ancestors(item) and index.precedes(unscale, item) for item in updates)
    ):
        return None
    if any(ast.unparse(item.func.value) != scaler for item in updates):  # type: ignore[attr-defined]
        return None
    if any(_is_given(call, scaler) or _is_made(call, scaler) for call in ast.walk(loop)):
        return None
    around = _tests(index, unscale, loop)
    known = {id(test) for test, _ in around}
    ways = [_tests(index, item, loop) for item in updates]
    if not around or not all(known <= {id(test) for test, _ in way} for way in ways):
        return None
    for test, outcome in ways[0]:
        if id(test) in known or not all((test, outcome) in way for way in ways):
            continue
        if _may_differ(index, test, around, unscale, loop) and not _leaves_the_loop(index, test, outcome, scaler):
            return updates[-1], (test, outcome)
    return None


def _tests(index: FileIndex, node: ast.AST, loop: Loop) -> list[Branch]:
    """The tests within the loop that decide about a place."""
    return [(test, said) for test, said in index.branches(node) if loop in list(index.ancestors(test))[1:]]


def _is_given(node: ast.AST, scaler: str) -> bool:
    """Whether a call is handed the scaler, and may update it."""
    if not isinstance(node, ast.Call):
        return False
    return any(ast.unparse(item) == scaler for item in (*node.args, *(item.value for item in node.keywords)))


def _is_made(node: ast.AST, scaler: str) -> bool:
    """Whether a statement makes another scaler of that name."""
    return isinstance(node, ast.Assign) and any(ast.unparse(target) == scaler for target in node.targets)


def _may_differ(index: FileIndex, test: ast.expr, around: list[Branch], unscale: ast.Call, loop: Loop) -> bool:
    """Whether a test asks for what this turn of the loop computed, and nothing before ``unscale_`` asked for it."""
    names = _names(test)
    held = [value for item in ast.walk(test) if isinstance(item, ast.Name) for value in index.values_of(item)]
    texts = " ".join(map(ast.unparse, [test, *held]))
    # A step is skipped for what gradients are like, with and without mixed precision.
    if is_about_precision(texts.replace("grad", "")) or "%" in texts:
        return False
    bound = [(name, target) for target, _, _ in index.assignments for name in _names(target) & names]
    bound = [(name, target) for name, target in bound if loop in index.ancestors(target)]
    asked = {name for other, _ in around for name in _names(other)}
    return any(name not in asked or (before(unscale, target) and before(target, test)) for name, target in bound)


def _names(node: ast.AST) -> set[str]:
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}


def _leaves_the_loop(index: FileIndex, test: ast.expr, outcome: bool, scaler: str) -> bool:
    """Whether the other way ends the loop, steps otherwise, or does something to the scaler."""
    branch = index.parents.get(test)
    if not isinstance(branch, ast.If):
        return True
    other = branch.orelse if outcome else branch.body
    for statement in other:
        if any(isinstance(item, (ast.Raise, ast.Return, ast.Break)) for item in ast.walk(statement)):
            return True
        text = ast.unparse(statement)
        if scaler in text or ".step(" in text or "exit(" in text:
            return True
    return False
