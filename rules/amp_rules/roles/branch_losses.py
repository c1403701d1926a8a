"""Losses that a branch computes by arithmetic alone, beside one that calls a criterion for its own."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

_RESCALING = frozenset({"mean", "get", "size", "item", "detach"})


def computes_beside(program: Program, module: Module, statement: ast.stmt, tainted: set[str]) -> bool:
    """Whether a statement computes a loss of outputs, in place of one that another branch asks a criterion for.

    The criterion's branch has a region, and so has this one: parts of models give half outputs, in which its arithmetic
    would go on.

    Args:
        program: the program.
        module: its file.
        statement: the statement.
        tainted: paths that hold outputs, and what is computed from them.
    """
    branch = module.parents[statement]
    if not isinstance(branch, ast.If) or not isinstance(statement, ast.Assign) or only_rescales(statement):
        return False
    if not blocks.touches(blocks.reads(statement), tainted):
        return False
    while isinstance(branch, ast.If) and blocks.is_elif(module, branch):
        branch = module.parents[branch]
    return any(
        isinstance(item, ast.Assign)
        and program.runs_differentiable_model(item)
        and blocks.touches(blocks.reads(item), tainted)
        and blocks.exclude_each_other(module, item, statement)
        for item in blocks.walk_own(branch)
    )


def only_rescales(statement: ast.stmt) -> bool:
    """``loss = loss / steps``, ``if n_gpu > 1: loss = loss.mean()``: autocast changes nothing in it."""
    return all(_rescales(node) for node in walk(statement))


def _rescales(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        # ``criterion.get(outputs, targets)`` computes: what rescales is given nothing but a dimension or a name.
        given = [*node.args, *(item.value for item in node.keywords)]
        is_plain = all(isinstance(item, ast.Constant) for item in given)
        return isinstance(node.func, ast.Attribute) and node.func.attr in _RESCALING and is_plain
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        return isinstance(node.op, (ast.Div, ast.Mult))
    return not isinstance(node, ast.stmt) or isinstance(node, (ast.Assign, ast.If))
