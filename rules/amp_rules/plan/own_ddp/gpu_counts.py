"""Whether a number is that of the GPUs of the machine, by all that gives it its value."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.path_objects import assigned
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.torch.functions import DEVICE_COUNTS

_MAX_DEPTH = 6
"""Names between a number and the call: an attribute, a variable, parameters of two or three functions."""

_Named = tuple[ast.expr, Scope]


def counts_gpus(own: OwnDdp, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is ``torch.cuda.device_count()`` on every way that is known, and on one at least."""
    return _counts(own, node, scope, _MAX_DEPTH)


def _counts(own: OwnDdp, node: ast.expr, scope: Scope, depth: int) -> bool:
    if isinstance(node, ast.Call):
        return bool(own.program.callee_names(node, scope) & DEVICE_COUNTS)
    given = list(_given(own, node, scope)) if depth else []
    return bool(given) and all(value is not None and _counts(own, *value, depth - 1) for value in given)


def _given(own: OwnDdp, node: ast.expr, scope: Scope) -> Iterator[_Named | None]:
    """Yield what a variable, a parameter or an attribute is given, and None for what is not known."""
    flow = own.program.flow
    if isinstance(node, ast.Name):
        owner = scope.owner(node.id)
        module = scope.module
        above = blocks.statement_of(module, node)
        just_above = blocks.given_just_above(module, above, blocks.body_of(module, node), node.id)
        if just_above is not None:
            yield just_above, scope
            return
        info = flow.functions.get(owner.node)
        if info is not None and node.id in info.parameters:
            for caller in flow.callers(info):
                given = info.argument_or_default(caller.call, node.id)
                yield None if given is None else (given, flow.scope_given(info, caller, given))
        yield from ((value, owner) for value in assigned(own.program, node, scope))
    elif isinstance(node, ast.Attribute):
        # What is not known may be the namespace of the arguments: all that an attribute of this name gets counts.
        holders = flow.values(node.value, scope)
        for other, _, where in own.program.nodes():
            if isinstance(other, ast.Attribute) and other.attr == node.attr and isinstance(other.ctx, ast.Store):
                others = flow.values(other.value, where)
                if holders and others and holders.isdisjoint(others):
                    continue
                statement = where.module.parents[other]
                if isinstance(statement, ast.Assign) and statement.targets == [other]:
                    yield statement.value, where
                else:
                    yield None
