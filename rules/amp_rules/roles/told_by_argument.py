"""Calls that cannot get to a place of the function they call, by the constants that they give it."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from amp_rules.flow.values import CallSite
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import literal
from amp_rules.source.modules import Module


def may_reach(info: FunctionFacts, site: Site, caller: CallSite) -> bool:
    """Whether a call of a function may run one of its nodes; ``training=False`` keeps it from ``if training:``.

    Args:
        info: the function.
        site: the node, in its body.
        caller: the call.
    """
    for test, holds in blocks.tests_around(site.module, site.node):
        name = _asked(test)
        if name not in info.parameters or _is_rebound(site.body, name):
            continue
        given = _constant(info.argument_or_default(caller.call, name))
        if given is ...:
            continue
        known = _outcome(test, given)
        if known is not None and known is not holds:
            return False
    return True


def suite_taken(info: FunctionFacts, branch: ast.If, call: ast.Call) -> list[ast.stmt] | None:
    """The suite of an ``if`` of a function that one call of it runs; None where a constant does not tell."""
    name = _asked(branch.test)
    if name not in info.parameters or _is_rebound(info.node, name):
        return None
    given = _constant(info.argument_or_default(call, name))
    known = _outcome(branch.test, given) if given is not ... else None
    return None if known is None else branch.body if known else branch.orelse


def may_reach_within(info: FunctionFacts, site: Site, inner: ast.Call, outer: FunctionFacts, call: ast.Call) -> bool:
    """Whether a call of an outer function may run a node of one that it calls itself, handing its arguments on.

    Args:
        info: the function that the node is in.
        site: the node.
        inner: the call of that function, in the outer one.
        outer: the outer function.
        call: the call of that.
    """
    for test, holds in blocks.tests_around(site.module, site.node):
        name = _asked(test)
        if name not in info.parameters or _is_rebound(site.body, name):
            continue
        handed = info.argument_or_default(inner, name)
        if isinstance(handed, ast.Name) and handed.id in outer.parameters:
            handed = outer.argument_or_default(call, handed.id)
        given = _constant(handed)
        known = _outcome(test, given) if given is not ... else None
        if known is not None and known is not holds:
            return False
    return True


def is_ruled_out(program: Program, module: Module, node: ast.AST) -> bool:
    """Whether no call of the function around a node gets there: none gives the mode that ``if mode == "new":`` asks."""
    body = blocks.body_of(module, node)
    info = program.function_of(body)
    scope = program.flow.scopes.get(body)
    callers = program.flow.callers(info) if info is not None else []
    if info is None or scope is None or not callers:
        return False
    site = Site(module, scope, body, node)
    return not any(may_reach(info, site, caller) for caller in callers)


def _asked(test: ast.expr) -> str:
    """The variable that a test is about; empty where it is about something else."""
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        test = test.left
    return test.id if isinstance(test, ast.Name) else ""


def _outcome(test: ast.expr, given: object) -> bool | None:
    """How a test comes out where its variable is a constant."""
    if isinstance(test, ast.UnaryOp):
        inner = _outcome(test.operand, given)
        return None if inner is None else not inner
    if isinstance(test, ast.Name):
        return bool(given)
    assert isinstance(test, ast.Compare)
    other, asks = _constant(test.comparators[0]), test.ops[0]
    if other is ...:
        return None
    if isinstance(asks, (ast.Eq, ast.Is)):
        return given == other
    if isinstance(asks, (ast.NotEq, ast.IsNot)):
        return given != other
    order = _ORDERS.get(type(asks))
    is_ordered = isinstance(given, (int, float)) and isinstance(other, (int, float))
    return order(given, other) if order is not None and is_ordered else None


_ORDERS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le,
}  # fmt: skip


def _constant(node: ast.AST | None) -> object:
    """A constant, or a number below zero: the default of ``def load(rank=-1)``."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = literal(node.operand)
        return -number if isinstance(number, (int, float)) else ...
    return literal(node)


def _is_rebound(body: ast.AST, name: str) -> bool:
    return any(isinstance(item, ast.stmt) and name in blocks.writes(item) for item in blocks.own_parts(body))
