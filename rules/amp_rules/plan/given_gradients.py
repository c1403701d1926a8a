"""Whose gradients a helper gets from one of its callers: ``clip(optimizer_g)`` here, ``clip(optimizer_d)`` there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import CallSite, Value
from amp_rules.plan.gradient_owners import GradientOwners
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.syntax import walk


def given_by(
    owners: GradientOwners, caller: CallSite, info: FunctionFacts, owner: ast.expr | None
) -> tuple[frozenset[Value], ast.expr] | None:
    """The optimizers that hold what a call gives for the parameter behind ``owner``, and that argument.

    None where more than one parameter is behind it, or where it is not known what the call gives.
    """
    parameter = _parameter_behind(owner, info) if owner is not None else None
    given = info.argument(caller.call, parameter) if parameter is not None else None
    if given is None:
        return None
    found = owners.of(given, caller.scope)
    return (found.optimizers, given) if found.is_known and found.optimizers and not found.strangers else None


def _parameter_behind(owner: ast.expr, info: FunctionFacts) -> str | None:
    """The only parameter that an expression is computed from, by way of local variables and loops."""
    pending, seen = _names(owner), set[str]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        for made in _made_from(info.node, name):
            pending |= _names(made)
    found = seen & set(info.parameters)
    return found.pop() if len(found) == 1 else None


def _names(node: ast.expr) -> set[str]:
    return {part.id for part in walk(node) if isinstance(part, ast.Name)}


def _made_from(body: ast.AST, name: str) -> Iterator[ast.expr]:
    """What the assignments, loops and comprehensions of a function give a variable."""
    for node in walk(body):
        if isinstance(node, ast.Assign):
            if any(name in _names(target) for target in node.targets):
                yield node.value
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
            if node.value is not None and name in _names(node.target):
                yield node.value
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)) and name in _names(node.target):
            yield node.iter
