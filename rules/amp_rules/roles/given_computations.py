"""Computations of a loss that stand among the arguments of the call that trains: ``update(model(x), y)``.

A region of autocast holds whole statements, and this one runs the backward pass, too: what is given gets a variable.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module


@dataclass(frozen=True)
class Given(Site):
    """An argument that runs a model.

    Attributes:
        call: the call that it is given to, which runs the backward pass.
        is_loss: whether the function has the backward pass start from it.
    """

    call: ast.Call
    is_loss: bool

    @property
    def argument(self) -> ast.expr:
        """The argument."""
        assert isinstance(self.node, ast.expr)
        return self.node

    @property
    def can_go_before(self) -> bool:
        """Whether nothing changes when the argument is evaluated before its statement.

        Names are read before it, and nothing is called.
        """
        return not _is_scoped(self.module, self.argument) and _is_first(self.module, self.argument)


def _is_scoped(module: Module, node: ast.expr) -> bool:
    """Whether an expression belongs to a comprehension, a lambda, a loop's head or one branch of an expression."""
    for parent in module.ancestors(node):
        if isinstance(parent, ast.stmt):
            return not isinstance(parent, (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return))
        if not isinstance(parent, (ast.Call, ast.keyword, ast.Attribute, ast.BinOp, ast.Subscript, ast.Tuple)):
            return True
    return True


def _is_first(module: Module, node: ast.expr) -> bool:
    """Whether no call of the statement runs before an expression does."""
    statement = blocks.statement_of(module, node)
    start = module.start(node)
    inside = set(ast.walk(node))
    around = {parent for parent in module.ancestors(node)}
    return not any(
        isinstance(other, (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr))
        and other not in inside
        and other not in around
        and module.start(other) < start
        for other in ast.walk(statement)
    )
