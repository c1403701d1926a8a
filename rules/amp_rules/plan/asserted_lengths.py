"""Tests of a loader's length that end the script: ``assert len(loader) == 546``.

A loader that is prepared where it is made is as long as the share of one process, so the number has to be a share too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.counts_of_loaders import is_length
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.share_steps import StepCount
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk

_HOLDING = (ast.Eq, ast.GtE)
"""Tests that hold of the share wherever they hold of the whole: the share of the number is rounded up."""

_FAILING = (ast.NotEq, ast.Lt)
"""The same of tests that end the script where they hold."""


def asserted_lengths(program: Program, processes: Distribution) -> Iterator[StepCount]:
    """Yield the numbers that the length of a prepared loader is compared with."""
    for _, test, ends, body, scope in _tests(program):
        found = _number(program, processes, test, ends, scope)
        if found is not None:
            number, loader = found
            yield StepCount(scope.module, scope, body, number, scope.module.text(loader), "steps")


def other_tests(program: Program, processes: Distribution) -> Iterator[Site]:
    """Yield the tests of such a length that cannot be made those of a share."""
    for statement, test, ends, body, scope in _tests(program):
        if _number(program, processes, test, ends, scope) is not None:
            continue
        compared = [
            parts
            for item in walk(test)
            if isinstance(item, ast.Compare)
            for parts in ([*walk(item)],)
            if any(_is_number(program, part, scope) or isinstance(part, ast.Mod) for part in parts)
        ]
        if any(
            isinstance(part, ast.expr) and _is_of_share(processes, part, scope) for item in compared for part in item
        ):
            yield Site(scope.module, scope, body, statement)


def _tests(program: Program) -> Iterator[tuple[ast.stmt, ast.expr, bool, ast.AST, Scope]]:
    """Yield what ends the script, its test, and whether it ends where the test holds."""
    for node, body, scope in program.nodes():
        if isinstance(node, ast.Assert):
            yield node, node.test, False, body, scope
        elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
            yield node, node.test, True, body, scope


def _number(
    program: Program, processes: Distribution, test: ast.expr, ends: bool, scope: Scope
) -> tuple[ast.expr, ast.expr] | None:
    """The number of a test, and the loader whose length is compared with it."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], _FAILING if ends else _HOLDING):
        return None
    one, other = test.left, test.comparators[0]
    if isinstance(one, ast.Constant) and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
        one, other = other, one
    if len(test.ops) > 1 or not _is_number(program, other, scope) or not _is_of_share(processes, one, scope):
        return None
    assert isinstance(one, ast.Call)
    return other, one.args[0]


def _is_number(program: Program, node: ast.AST, scope: Scope) -> bool:
    """Whether a node is a whole number above one, or a variable that holds such numbers alone."""
    if not isinstance(node, (ast.Constant, ast.Name)):
        return False
    values = program.flow.values(node, scope)
    found = {node.value} if isinstance(node, ast.Constant) else {value.ref for value in values}
    is_constant = isinstance(node, ast.Constant) or all(value.kind == "constant" for value in values)
    return is_constant and bool(found) and all(type(value) is int and value > 1 for value in found)


def _is_of_share(processes: Distribution, node: ast.expr, scope: Scope) -> bool:
    """Whether a node is the length of loaders that are prepared where they are made."""
    if not is_length(processes.whole_lengths, node, scope) or not isinstance(node, ast.Call):
        return False
    loader = node.args[0]
    named = loader.value if isinstance(loader, ast.Subscript) and isinstance(loader.slice, ast.Constant) else loader
    values = processes.program.flow.values(loader, scope)
    return blocks.path_of(named) is not None and all(value.site in processes.setting.prepared for value in values)
