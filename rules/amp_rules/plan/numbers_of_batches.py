"""Whether something is made of the tensors of a batch, as ``total += loss.detach()``, and whether it is a number."""

from __future__ import annotations

import ast

from amp_rules.plan.distribution import Distribution
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

_MAX_CALLS = 3
"""Functions through which a number is followed to the loss that it is; trainers have two."""


_OF_TENSORS = frozenset({"detach", "data", "sum", "item", "cpu"})
"""Methods and attributes that give a number of a tensor, or the tensor of one number without what made it."""


def is_number(node: ast.AST) -> bool:
    """Whether a tensor is made a number here: ``loss.item()``, ``float(loss)``, ``loss.data[0]`` of old torch.

    So is the tensor of one number that is the mean or the sum of another: ``guessed.eq(y).float().mean()``.
    """
    if isinstance(node, ast.expr) and _is_of_all_elements(bare(node)):
        return True
    calls = [part.func for part in walk(node) if isinstance(part, ast.Call)]
    return any(blocks.path_of(func) == "float" or getattr(func, "attr", "") == "item" for func in calls) or any(
        isinstance(part, ast.Subscript)
        and isinstance(part.value, ast.Attribute)
        and part.value.attr == "data"
        and isinstance(part.slice, ast.Constant)
        and part.slice.value == 0
        for part in walk(node)
    )


def is_of_batch(node: ast.AST) -> bool:
    """Whether something is made of a tensor: ``loss.item()``, ``loss.detach()``, ``(predicted == y).sum()``."""
    return is_number(node) or any(isinstance(part, ast.Attribute) and part.attr in _OF_TENSORS for part in walk(node))


def comes_of_batch(processes: Distribution, node: ast.AST, place: Site, depth: int = 0) -> bool:
    """Whether something is made of a tensor here, or by a function that gives it back: ``loss = self.step(x)``."""
    if is_of_batch(node):
        return True
    program = processes.program
    value = node.value if isinstance(node, (ast.AugAssign, ast.Assign)) else node
    if depth >= _MAX_CALLS:
        return False
    parts: list[tuple[ast.AST, int | None]] = [(part, None) for part in walk(value) if isinstance(part, ast.Call)]
    for name in walk(value):
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load):
            given = processes.definitions.of(name, place.scope)
            parts += [(item.value, _index_of(item.statement, name.id)) for item in given]
    for call, index in parts:
        for info in program.flow.callees(call) if isinstance(call, ast.Call) else ():
            scope = program.flow.scopes[info.node]
            inner = Site(scope.module, scope, info.node, info.node)
            for back in info.returns:
                part = _part(back, index)
                if part is None:
                    continue
                if comes_of_batch(processes, part, inner, depth + 1) or _is_made_of_batch(processes, part, inner):
                    return True
    return False


def _part(value: ast.expr, index: int | None) -> ast.expr | None:
    """A part of what a function gives back; None where a function beside the one that is meant gives other parts."""
    if not isinstance(value, ast.Tuple) or index is None:
        return value
    before = value.elts[: index + 1]
    return before[-1] if index < len(value.elts) and not any(isinstance(item, ast.Starred) for item in before) else None


def _is_made_of_batch(processes: Distribution, node: ast.expr, place: Site) -> bool:
    """Whether a variable is assigned what is made of a tensor: ``loss_D = loss.item()``."""
    if not isinstance(node, ast.Name):
        return False
    return any(is_of_batch(item.value) for item in processes.definitions.of(node, place.scope))


def _index_of(statement: ast.stmt, name: str) -> int | None:
    """Which part of what is assigned a variable takes, if it takes a part."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    for target in targets:
        if isinstance(target, ast.Tuple):
            for index, item in enumerate(target.elts):
                if isinstance(item, ast.Name) and item.id == name:
                    return index
    return None


def _is_of_all_elements(node: ast.expr) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return node.func.attr in ("mean", "sum") and not (node.args or node.keywords)


def bare(node: ast.expr) -> ast.expr:
    """The tensor that a chain of such methods begins with: ``loss`` of ``loss.detach().cpu()``."""
    while True:
        inner = node.func if isinstance(node, ast.Call) else node
        if not (isinstance(inner, ast.Attribute) and inner.attr in _OF_TENSORS):
            return node
        node = inner.value
