"""Closures that set the gradients of an optimizer's tensors themselves: ``x.grad = torch.autograd.grad(loss, x)[0]``.

These gradients are true: nothing scales what ``torch.autograd.grad`` gives. So does a search by LBFGS for the input
that a flow maps to a given output.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.torch.gradients import GRADIENT


def sets_all_gradients(
    made: Iterable[ast.Call], closures: Iterable[ast.AST], is_differentiated: Callable[[ast.Call], bool]
) -> bool:
    """Whether each closure sets the gradient of each tensor that the optimizer is made of, and of nothing else.

    Args:
        made: the calls that make the optimizer.
        closures: the functions that its step is given.
        is_differentiated: whether a call is of ``torch.autograd.grad``.
    """
    tensors = [_tensors(call) for call in made]
    if not tensors or not tensors[0] or any(names != tensors[0] for names in tensors):
        return False
    return all(_set_in(closure, is_differentiated) == tensors[0] for closure in closures)


def _tensors(call: ast.Call) -> set[str]:
    """The variables of ``LBFGS([x, y])``; none where something else is given."""
    given = call.args[0] if call.args else None
    if not isinstance(given, (ast.List, ast.Tuple)):
        return set()
    return {item.id for item in given.elts if isinstance(item, ast.Name)} if _all_names(given.elts) else set()


def _all_names(nodes: list[ast.expr]) -> bool:
    return all(isinstance(item, ast.Name) for item in nodes)


def _set_in(closure: ast.AST, is_differentiated: Callable[[ast.Call], bool]) -> set[str]:
    """The variables whose gradient a closure sets to what ``torch.autograd.grad`` gives; none where it does more."""
    found: set[str] = set()
    for node in blocks.walk_body(closure):
        if not (isinstance(node, ast.Attribute) and node.attr == GRADIENT):
            continue
        if isinstance(node.ctx, ast.Load) and _names_function(node):
            continue
        assigning = (item for item in blocks.walk_body(closure) if isinstance(item, ast.Assign))
        statement = next((item for item in assigning if item.targets == [node]), None)
        if statement is None or not isinstance(node.value, ast.Name) or not _gives(statement.value, is_differentiated):
            return set()
        found.add(node.value.id)
    return found


def _names_function(node: ast.Attribute) -> bool:
    """``torch.autograd.grad``, which is no gradient."""
    return isinstance(node.value, ast.Attribute) and node.value.attr == "autograd"


def _gives(node: ast.expr, is_differentiated: Callable[[ast.Call], bool]) -> bool:
    """Whether an expression is one gradient that ``torch.autograd.grad`` gives: ``grad(loss, x)[0].detach()``."""
    calls = [item for item in walk(node) if isinstance(item, ast.Call) and is_differentiated(item)]
    current = node
    while current not in calls:
        if isinstance(current, ast.Call) and isinstance(current.func, ast.Attribute) and not current.args:
            current = current.func.value
        elif isinstance(current, (ast.Subscript, ast.Attribute)):
            current = current.value
        else:
            return False
    return True
