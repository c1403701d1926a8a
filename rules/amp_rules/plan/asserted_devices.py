"""Where a script that chooses its GPU itself asserts that it sees one: under torchrun each process sees all of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.scopes import Scope
from amp_rules.torch.functions import DEVICE_COUNTS


def asserted_devices(program: Program) -> Iterator[tuple[Site, ast.expr]]:
    """Yield ``assert torch.cuda.device_count() == 1``, also of a variable that holds the number, with its test."""
    for node, body, scope in program.nodes():
        if isinstance(node, ast.Assert) and _is_of_one_device(program, node.test, scope):
            yield Site(scope.module, scope, body, node), node.test


def _is_of_one_device(program: Program, test: ast.expr, scope: Scope) -> bool:
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.LtE))):
        return False
    limit = test.comparators[0]
    if not (isinstance(limit, ast.Constant) and limit.value == 1):
        return False
    counts = [test.left] if isinstance(test.left, ast.Call) else assigned(program, test.left, scope)
    return bool(counts) and all(
        isinstance(item, ast.Call) and bool(program.callee_names(item, scope) & DEVICE_COUNTS) for item in counts
    )
