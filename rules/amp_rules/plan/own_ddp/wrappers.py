"""Whether an expression holds a model in its wrapper, and not the model inside."""

from __future__ import annotations

import ast
from collections.abc import Collection

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.steps import Site, calling
from amp_rules.source import blocks

_MAX_DEPTH = 8
"""Names and parameters between a wrapper and where it is called: a trainer, its method, a function that evaluates."""


def wrapped_by(own: OwnDdp, node: ast.expr, site: Site, wraps: Collection[Site], depth: int = _MAX_DEPTH) -> bool:
    """Whether an expression may hold what one of some calls of ``DistributedDataParallel`` gives.

    Args:
        own: the program.
        node: the expression.
        site: where it is read.
        wraps: the calls.
        depth: how many names and parameters may lie between.
    """
    made = {item.node for item in wraps}
    if node in made:
        return True
    if depth > 0 and isinstance(node, ast.Call):
        return _is_given_back(own, node, wraps, depth)
    if depth <= 0 or not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    if isinstance(node, ast.Attribute) and any(_is_kept_as(own, node, site, wrap) for wrap in wraps):
        return True
    owner = site.scope.owner(node.id) if isinstance(node, ast.Name) else site.scope
    for value in assigned(own.program, node, site.scope):
        body = blocks.body_of(site.module, value)
        if body is site.body and _line(value) > _line(site.node):
            continue  # ``inner = model`` above ``model = DDP(model)``
        if wrapped_by(own, value, Site(site.module, own.program.flow.scopes[body], body, value), wraps, depth - 1):
            return True
    info = own.program.flow.functions.get(owner.node)
    if info is None or not isinstance(node, ast.Name) or node.id not in info.parameters:
        return False
    for caller in own.program.flow.callers(info):
        given = info.argument_or_default(caller.call, node.id)
        if given is not None and wrapped_by(own, given, calling(caller), wraps, depth - 1):
            return True
    return False


def _is_given_back(own: OwnDdp, call: ast.Call, wraps: Collection[Site], depth: int) -> bool:
    """Whether a function of the project gives such a wrapper back."""
    for info in own.program.flow.callees(call):
        scope = own.program.flow.scopes[info.node]
        module = info.module.module
        for given in info.returns:
            if wrapped_by(own, given, Site(module, scope, info.node, given), wraps, depth - 1):
                return True
    return False


def _is_kept_as(own: OwnDdp, node: ast.Attribute, site: Site, wrap: Site) -> bool:
    """Whether an attribute of an object is the one that a wrapper is put into from outside: ``trainer.model = ...``."""
    statement = wrap.statement
    values = own.program.flow.values(node.value, site.scope)
    return (
        isinstance(statement, ast.Assign)
        and statement.value is wrap.node
        and any(
            isinstance(target, ast.Attribute)
            and target.attr == node.attr
            and own.program.flow.values(target.value, wrap.scope) & values
            for target in statement.targets
        )
    )


def _line(node: ast.AST) -> int:
    line: int = getattr(node, "lineno", 0)
    return line
