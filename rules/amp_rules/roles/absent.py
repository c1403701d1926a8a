"""Variables that never hold anything: every place that gives them a value gives ``None``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.flow import Flow
from amp_rules.flow.values import Value
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.models import TORCH_MODULE_BASES

_MAX_PLACES = 16
"""Variables and parameters that are looked through: an option that is handed on goes through two or three."""

_BARE = frozenset({"object", "builtins.object", "abc.ABC"}) | TORCH_MODULE_BASES
"""Bases that give an object no attributes of a script's own."""
_SETS_BY_NAME = frozenset({"setattr", "object.__setattr__", "vars", "self.__dict__.update"})
"""Calls after which an attribute may hold what its name does not show."""


def never_runs(flow: Flow, module: Module, node: ast.AST) -> bool:
    """Whether a node stands under a condition on a variable that is always false, as in ``if log_file:``."""
    inner = node
    for parent in blocks.enclosing(module, node):
        if isinstance(parent, ast.If):
            scope = flow.scopes.get(blocks.body_of(module, parent))
            in_body = any(inner is item or inner in set(walk(item)) for item in parent.body)
            if in_body and scope is not None and _is_always(flow, parent.test, scope, none=False):
                return True
        inner = parent
    return False


def is_always_none(flow: Flow, node: ast.expr, scope: Scope) -> bool:
    """Whether a variable is ``None`` whenever it is read, as in ``train(model, optimizer, scheduler=None)``.

    An attribute is where all that its object was made with is: ``self.scheduler = scheduler``.
    """
    return _is_always(flow, node, scope, none=True)


def _is_always(flow: Flow, node: ast.expr, scope: Scope, *, none: bool) -> bool:
    """Whether a variable is ``None``, or a constant that counts as false, whenever it is read."""
    pending = [(node, scope)]
    seen: set[ast.AST] = set()
    while pending:
        current, inner = pending.pop()
        if isinstance(current, ast.Constant) and (current.value is None or not (none or current.value)):
            continue
        if current in seen or len(seen) == _MAX_PLACES or not isinstance(current, (ast.Name, ast.Attribute)):
            return False
        seen.add(current)
        given = list(_given(flow, current, inner) if isinstance(current, ast.Name) else _put(flow, current, inner))
        if not given:
            return False
        for value, outer in given:
            if value is None:
                return False
            pending.append((value, outer))
    return True


def _given(flow: Flow, name: ast.Name, scope: Scope) -> Iterator[tuple[ast.expr | None, Scope]]:
    """What a variable is given, and where; None for what is not a plain assignment or argument."""
    owner = scope.owner(name.id)
    info = flow.functions.get(owner.node)
    if info is not None and name.id in info.parameters:
        for caller in flow.callers(info):
            yield info.argument_or_default(caller.call, name.id), caller.scope
    # Variables of this name in functions further in count too: one more value says no more than that it is not known.
    for node in walk(owner.node):
        if isinstance(node, ast.Name) and node.id == name.id and not isinstance(node.ctx, ast.Load):
            statement = blocks.statement_of(owner.module, node)
            inner = flow.scopes.get(blocks.body_of(owner.module, node))
            if inner is not None and isinstance(statement, ast.Assign) and node in statement.targets:
                yield statement.value, inner
            else:
                yield None, owner


def _put(flow: Flow, attribute: ast.Attribute, scope: Scope) -> Iterator[tuple[ast.expr | None, Scope]]:
    """What an attribute of an object of the project is given, and where; those of its name of all objects count."""
    owners = [value for value in flow.values(attribute.value, scope) if value.kind == "instance"]
    if not owners or not all(map(_is_bare, owners)):
        return
    # What only its name tells of an object is no value.
    if any(value.kind != "attribute" for value in flow.values(attribute, scope)):
        return
    for module in flow.modules:
        for node in module.nodes:
            if isinstance(node, ast.Call) and blocks.path_of(node.func) in _SETS_BY_NAME:
                yield None, scope
            elif isinstance(node, ast.Attribute) and node.attr == attribute.attr and isinstance(node.ctx, ast.Store):
                statement = blocks.statement_of(module, node)
                inner = flow.scopes.get(blocks.body_of(module, node))
                if inner is not None and isinstance(statement, ast.Assign) and node in statement.targets:
                    yield statement.value, inner
                else:
                    yield None, scope


def _is_bare(owner: Value) -> bool:
    """Whether nothing but its own classes can give an object of the project attributes."""
    family = owner.ref.mro()
    return not set(owner.ref.external_bases()) - _BARE and all(
        len(info.bases) >= len(info.facts.node.bases) for info in family
    )
