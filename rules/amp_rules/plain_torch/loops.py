"""Loops, and the variables that count their rounds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk

_NUMBERS = frozenset({"builtins.range", "itertools.count"})
_BARS_OF_NUMBERS = frozenset({"trange", "tnrange"})
"""Progress bars that count by themselves, by the last part of their names."""
_PASSED_THROUGH = frozenset({"tqdm", "reversed", "list", "iter", "sorted", "progress_bar", "master_bar", "track"})
"""Functions whose rounds are those of their first argument, by the last part of their names."""


@dataclass(frozen=True)
class Counter:
    """What counts the rounds of a loop.

    Attributes:
        name: the variable.
        target: the variable of the loop's head that is to be called so; None where it is already.
    """

    name: str
    target: ast.Name | None = None


def loops_around(module: Module, node: ast.AST) -> list[ast.stmt]:
    """The loops that run a node in each round, the nearest first."""
    found: list[ast.stmt] = []
    for item in blocks.enclosing(module, node):
        if isinstance(item, (ast.For, ast.AsyncFor)) and node in set(walk(item.iter)):
            continue  # it is run once, before the first round
        if isinstance(item, blocks.LOOPS):
            found.append(item)
    return found


def is_over_phases(program: Program, loop: ast.stmt, scope: Scope) -> bool:
    """Whether a loop goes over words, as ``for phase in ["train", "val"]``: at most one of its rounds trains."""
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
        return False
    values = program.flow.elements(program.flow.values(loop.iter, scope))
    return bool(values) and all(value.kind == "constant" and isinstance(value.ref, str) for value in values)


def counter_of(program: Program, site: Site, loop: ast.stmt) -> Counter | None:
    """What counts the rounds of a loop by whole numbers; None where nothing does."""
    if isinstance(loop, ast.For):
        return _of_for(program, site, loop)
    if isinstance(loop, ast.While):
        found = list(_counted_up(program, site, loop))
        asked = blocks.reads(loop.test)
        return next((Counter(name) for name in sorted(found, key=lambda name: name not in asked)), None)
    return None


def _of_for(program: Program, site: Site, loop: ast.For) -> Counter | None:
    target = loop.target
    if isinstance(target, ast.Tuple) and _is_call_to(program, loop.iter, site.scope, frozenset({"builtins.enumerate"})):
        first = target.elts[0]
        return Counter(first.id) if isinstance(first, ast.Name) and first.id != "_" else None
    if not isinstance(target, ast.Name) or not _gives_numbers(program, loop.iter, site.scope):
        return None
    inner = {node.id for item in loop.body for node in blocks.walk_own(item) if isinstance(node, ast.Name)}
    if target.id == "_":
        is_free = "_" not in inner and not names_of(site.module).is_taken("epoch")
        return Counter("epoch", target) if is_free else None
    return Counter(target.id)


def _gives_numbers(program: Program, node: ast.expr, scope: Scope) -> bool:
    while isinstance(node, ast.Call):
        names = program.callee_names(node, scope)
        if names & _NUMBERS or {name.rpartition(".")[2] for name in names} & _BARS_OF_NUMBERS:
            return True
        if not node.args or not {name.rpartition(".")[2] for name in names} & _PASSED_THROUGH:
            return False
        node = node.args[0]
    return False


def _is_call_to(program: Program, node: ast.expr, scope: Scope, names: frozenset[str]) -> bool:
    while isinstance(node, ast.Call) and node.args:
        found = program.callee_names(node, scope)
        if found & names:
            return True
        if not {name.rpartition(".")[2] for name in found} & _PASSED_THROUGH:
            return False
        node = node.args[0]
    return False


def _counted_up(program: Program, site: Site, loop: ast.While) -> Iterator[str]:
    """Yield the variables to which each round adds a whole number, once and in any case."""
    for item in loop.body:
        if isinstance(item, ast.AugAssign) and isinstance(item.op, ast.Add) and isinstance(item.value, ast.Constant):
            path = blocks.path_of(item.target)
            if path is None or isinstance(item.target, ast.Subscript) or not isinstance(item.value.value, int):
                continue
            held = program.flow.values(blocks.reading(item.target), site.scope)
            if not any(value.kind == "constant" and isinstance(value.ref, float) for value in held):
                yield path
