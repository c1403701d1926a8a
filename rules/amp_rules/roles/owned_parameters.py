"""Single parameters that an optimizer is given, ``SGD([head.kernel])``: which models own them."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.flow.flow import Flow
from amp_rules.flow.values import Value
from amp_rules.roles.kinds import is_module
from amp_rules.source.scopes import Scope
from amp_rules.torch.functions import PARAMETER_MAKERS


def owners(flow: Flow, nodes: Iterable[tuple[ast.AST, ast.AST, Scope]], value: Value) -> set[Value]:
    """The models of the project that hold a parameter under a name, by where the program reads it of them.

    Args:
        flow: what names may hold.
        nodes: the nodes of the program, with their bodies and scopes.
        value: the parameter.
    """
    if value.kind != "object" or value.ref not in PARAMETER_MAKERS:
        return set()
    found: set[Value] = set()
    for node, _, scope in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and value in flow.values(node, scope):
            held = flow.values(node.value, scope)
            found |= {owner for owner in held if owner.kind == "instance" and is_module(owner)}
    return found


def made_parameters(
    flow: Flow, nodes: Iterable[tuple[ast.AST, ast.AST, Scope]], tensors: set[Value], owned: set[Value]
) -> set[Value]:
    """The tensors that stand under the name of an owned parameter: it was made of them.

    ``self.scale = torch.ones(n)``, then ``self.scale = nn.Parameter(self.scale)``; a module refuses any other order.
    """
    if not tensors or not owned:
        return set()
    found: set[Value] = set()
    for node, _, scope in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            values = flow.values(node, scope)
            if not owned.isdisjoint(values):
                found |= tensors & values
    return found
