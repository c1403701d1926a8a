"""Learning rates that NumPy works out: the optimizer's state holds a number of NumPy then."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from weakref import WeakKeyDictionary

from amp_rules.flow.values import Value
from amp_rules.plan.old_torch.old import OldProgram
from amp_rules.plan.old_torch.value_origins import origins
from amp_rules.roles.program import Program
from amp_rules.source.index import argument_at, literal
from amp_rules.source.scopes import Scope
from amp_rules.torch.old_torch import NUMPY_ARITHMETIC, SCHEDULES_OF_A_FUNCTION

_MAX_STEPS = 8
"""Variables, parameters and functions between a learning rate and what works it out."""

_FOUND: WeakKeyDictionary[Program, bool] = WeakKeyDictionary()


def has_numpy_rates(old: OldProgram, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is the state of an optimizer, in a program that gives one such a learning rate."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "state_dict"):
        return False
    values = old.program.flow.values(node.func.value, scope)
    if not values & _stepping(old):
        return False
    if old.program not in _FOUND:
        _FOUND[old.program] = any(_is_of_numpy(old, rate, where, frozenset()) for rate, where in _rates(old))
    return _FOUND[old.program]


def _stepping(old: OldProgram) -> set[Value]:
    """The optimizers that the program steps."""
    return {value for step in old.program.steps for value in old.program.flow.values(step.optimizer, step.scope)}


def _rates(old: OldProgram) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what ``group["lr"]`` is given, and what the function of a scheduler gives."""
    for node, _, scope in old.program.nodes():
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(map(_is_rate, targets)):
                yield node.value, scope
    for site in old.program.calls_to(SCHEDULES_OF_A_FUNCTION):
        given = argument_at(site.node, "lr_lambda", 1) if isinstance(site.node, ast.Call) else None
        if isinstance(given, ast.Lambda):
            yield given.body, old.program.flow.scopes.get(given, site.scope)
        elif given is not None:
            for value in old.program.flow.values(given, site.scope):
                for item in value.ref.returns if value.kind == "function" else ():
                    yield item, old.program.flow.scopes.get(value.ref.node, site.scope)


def _is_rate(target: ast.expr) -> bool:
    return isinstance(target, ast.Subscript) and literal(target.slice) == "lr"


def _is_of_numpy(old: OldProgram, node: ast.expr, scope: Scope, asked: frozenset[ast.AST]) -> bool:
    """Whether a number is one of NumPy: arithmetic with one gives another, while ``float`` makes it a plain one."""
    if node in asked or len(asked) > _MAX_STEPS:
        return False
    asked |= {node}
    if isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        parts = [node.operand]
    elif isinstance(node, ast.IfExp):
        parts = [node.body, node.orelse]
    else:
        if isinstance(node, ast.Call) and old.program.callee_names(node, scope) & NUMPY_ARITHMETIC:
            return True
        return any(_is_of_numpy(old, item, where, asked) for item, where in origins(old, node, scope))
    return any(_is_of_numpy(old, item, scope, asked) for item in parts)
