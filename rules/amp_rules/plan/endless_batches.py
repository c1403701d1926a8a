"""Loops over batches without end that are left where a batch shows, by its size, that it was the last.

The processes take turns with what such a generator gives. When one has the last batch, another has what comes behind
it: a batch without samples.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.roles.batches import TrainingData
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk


def left_by_size(program: Program, data: TrainingData) -> Iterator[tuple[Site, ast.expr]]:
    """Yield what a training loop goes over without end, and the condition on its batches by which it is left."""
    for use in data.uses:
        loop = use.loop_around
        if not isinstance(use.loader, ast.Call) or not isinstance(loop, ast.For):
            continue
        callees = program.flow.callees(use.loader)
        if not callees or not all(_never_ends(info) for info in callees):
            continue
        for node in blocks.walk_own(loop):
            if isinstance(node, ast.Break) and blocks.loop_around(use.module, node) is loop:
                tests = [test for test, _ in blocks.tests_around(use.module, node) if test in set(walk(loop))]
                found = next((test for test in tests if _asks_for_size(program, use.module, test, loop)), None)
                if found is not None:
                    yield use, found


def _never_ends(info: FunctionFacts) -> bool:
    """Whether a generator gives its batches in a ``while True`` that nothing leaves."""
    last = info.body[-1] if info.body else None
    if not info.yields or not isinstance(last, ast.While) or info.returns:
        return False
    if not isinstance(last.test, ast.Constant) or not last.test.value:
        return False
    inside = [node for statement in info.body for node in blocks.walk_own(statement)]
    return not any(
        isinstance(node, ast.Return)
        or (isinstance(node, ast.Break) and blocks.loop_around(info.module.module, node) is last)
        for node in inside
    )


def _asks_for_size(program: Program, module: Module, test: ast.expr, loop: ast.For) -> bool:
    """Whether a condition asks how many samples a batch of the loop has, and for nothing that a model gives."""
    parts: list[ast.expr] = [test]
    names: set[str] = set()
    for part in parts:
        if program.runs_model(part):
            return False
        names |= {node.id for node in walk(part) if isinstance(node, ast.Name)}
        for node in blocks.walk_own(loop):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                for variable, value in blocks.unpacked(target, node.value):  # type: ignore[attr-defined]
                    if value not in parts and blocks.path_of(variable) in names:
                        parts.append(value)
    return bool(names & blocks.writes_target(loop)) and any(_is_size(node) for part in parts for node in walk(part))


def _is_size(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        path = blocks.path_of(node.func)
        return path == "len" or (isinstance(node.func, ast.Attribute) and node.func.attr == "size")
    return isinstance(node, ast.Attribute) and node.attr == "shape"
