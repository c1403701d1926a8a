"""Evaluations right below each other: one region holds them all where autocast does nothing to what stands between."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from amp_rules.roles.program import Program
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

_MOST = 3
"""Statements between two evaluations, which a region should not hold for nothing."""
_MOVES = frozenset(
    """
    chunk clone contiguous detach expand flatten flip fliplr flipud permute repeat reshape rot90 split squeeze swapaxes
    transpose unsqueeze view
    """.split()
)
"""Methods and functions that put numbers elsewhere and change none: autocast does nothing to them."""
_BUILTINS = frozenset({"builtins.isinstance", "builtins.len", "builtins.type"})
_PLAIN = (
    ast.Assign, ast.Attribute, ast.BinOp, ast.Call, ast.Compare, ast.Constant, ast.Expr, ast.If, ast.List, ast.Name,
    ast.Return, ast.Slice, ast.Subscript, ast.Tuple, ast.UnaryOp, ast.arguments, ast.arg, ast.cmpop, ast.expr_context,
    ast.keyword, ast.operator, ast.unaryop,
)  # fmt: skip


def joined(program: Program, runs: list[StatementRun], apart: Sequence[StatementRun]) -> list[StatementRun]:
    """The regions, in which evaluations of one suite are one; ``apart`` are those that stay as they are."""
    by_suite: dict[int, list[tuple[int, StatementRun]]] = {}
    for run in runs:
        if run not in apart:
            where = blocks.place(run.module, run.first)
            by_suite.setdefault(id(where.suite[0]), []).append((where.index, run))
    held: dict[StatementRun, StatementRun] = {}
    for entries in by_suite.values():
        entries.sort(key=lambda entry: entry[0])
        groups: list[list[StatementRun]] = []
        for _, run in entries:
            if groups and _only_moves(program, groups[-1][-1], run):
                groups[-1].append(run)
            else:
                groups.append([run])
        for group in groups:
            held.update(dict.fromkeys(group, StatementRun(group[0].module, group[0].first, group[-1].last)))
    return list(dict.fromkeys(held.get(run, run) for run in runs))


def _only_moves(program: Program, above: StatementRun, below: StatementRun) -> bool:
    """Whether what stands between two runs takes parts, turns and flips, or computes element by element."""
    where = blocks.place(above.module, above.last)
    start, end = where.index + 1, blocks.place(below.module, below.first).index
    between = where.suite[start:end]
    return 0 < len(between) <= _MOST and all(_moves(program, item) for item in between)


def _moves(program: Program, statement: ast.stmt, depth: int = 0) -> bool:
    return all(
        isinstance(node, _PLAIN)
        and not isinstance(node, ast.MatMult)
        and (not isinstance(node, ast.Call) or _is_move(program, node, depth))
        for node in walk(statement)
    ) and not _sets_elements(statement)


def _is_move(program: Program, call: ast.Call, depth: int) -> bool:
    callees = program.flow.callees(call)
    if callees:
        return depth == 0 and all(
            info.cls is None
            and isinstance(info.node, ast.FunctionDef)
            and not info.node.decorator_list
            and all(_moves(program, item, depth + 1) for item in info.node.body)
            for info in callees
        )
    located = program.locate(call)
    if located is None:
        return False
    names = program.callee_names(call, located[1])
    if names:
        return all(name in _BUILTINS or name.rpartition(".")[2] in _MOVES for name in names)
    return isinstance(call.func, ast.Attribute) and call.func.attr in _MOVES


def _sets_elements(statement: ast.stmt) -> bool:
    """``out[mask] = value`` may meet two types."""
    return any(
        isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store) for node in walk(statement)
    )
