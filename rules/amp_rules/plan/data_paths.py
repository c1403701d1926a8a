"""Paths of files that a batch itself names: each process reads those of its own batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.origins import Kind
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope

_MAX_DEPTH = 4
"""Names between a path and the batch."""
_KEEPS = frozenset(
    {
        "os.path.join", "os.path.basename", "os.path.splitext", "os.path.abspath", "os.fspath", "pathlib.Path",
        "builtins.str", "builtins.enumerate", "builtins.zip", "builtins.list", "builtins.sorted",
    }
)  # fmt: skip
_KEEPING_METHODS = frozenset({"decode", "replace", "split", "strip", "format", "with_suffix", "joinpath", "lower"})


def is_of_data(program: Program, ranks: Ranks, path: ast.expr, scope: Scope) -> bool:
    """Whether a path differs between ranks by what stands in their batches alone: a file of the data.

    A number that is computed from a batch, as the loss in the name of a checkpoint, is none.
    """
    origins = ranks.origins(path)
    if not origins or any(origin.kind is not Kind.BATCH for origin in origins):
        return False
    leaves = list(_leaves(program, ranks, path, scope, _MAX_DEPTH))
    return bool(leaves) and all(leaves)


def _leaves(program: Program, ranks: Ranks, node: ast.expr, scope: Scope, depth: int) -> Iterator[bool]:
    """Yield, for each part of a path that differs between ranks, whether it is an item of a batch."""
    if not ranks.origins(node):
        return
    if any(value.kind == "batch" for value in program.flow.values(node, scope)):
        yield True
    elif isinstance(node, (ast.JoinedStr, ast.BinOp, ast.FormattedValue, ast.Tuple, ast.List)):
        for item in ast.iter_child_nodes(node):
            if isinstance(item, ast.expr):
                yield from _leaves(program, ranks, item, scope, depth)
    elif isinstance(node, ast.Subscript):
        yield from _leaves(program, ranks, node.value, scope, depth)
    elif isinstance(node, ast.Call):
        yield from _call(program, ranks, node, scope, depth)
    else:
        given = assigned(program, node, scope) if depth and isinstance(node, ast.Name) else []
        given = [item for item in given if blocks.body_of(scope.module, item) is scope.owner(node.id).node]  # type: ignore[attr-defined]
        if not given:
            yield False
        for item in given:
            yield from _leaves(program, ranks, item, scope, depth - 1)


def _call(program: Program, ranks: Ranks, call: ast.Call, scope: Scope, depth: int) -> Iterator[bool]:
    given = list(call.args)
    if isinstance(call.func, ast.Attribute) and call.func.attr in _KEEPING_METHODS:
        given.append(call.func.value)
    elif not program.callee_names(call, scope) & _KEEPS:
        yield False
        return
    for item in given:
        yield from _leaves(program, ranks, item, scope, depth)
