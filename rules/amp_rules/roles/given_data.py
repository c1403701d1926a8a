"""What a loader or a sampler is given as its data, which is no model, whatever class a name made at run time finds."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.flow.flow import Flow
from amp_rules.flow.values import Value
from amp_rules.roles.kinds import is_loader_value
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.source.scopes import Scope
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS, RANDOM_SAMPLERS

_SAMPLERS = DISTRIBUTED_SAMPLERS | RANDOM_SAMPLERS


def without_data(
    flow: Flow,
    nodes: Iterable[tuple[ast.AST, ast.AST, Scope]],
    calls: Iterable[tuple[ast.Call, ast.AST, Scope]],
    models: set[Value],
) -> set[Value]:
    """These models, without what is data: ``data = eval(name)(path)`` above ``DataLoader(data)``.

    ``eval(name)`` gives each class that the file knows, models too. Of one class alone it is known what it makes.

    Args:
        flow: what names may hold.
        nodes: the nodes of the program, with their bodies and scopes.
        calls: the calls among them.
        models: the models.
    """
    made = {value.site for value in models if isinstance(value.site, ast.Call)}
    chosen = {call for call, _, scope in calls if call in made and len(flow.values(call.func, scope)) > 1}
    if not chosen:
        return models
    put: dict[object, list[ast.AST]] = {}
    taken: set[object] = set()
    keys: set[object] = set()
    for node, _, scope in nodes:
        if isinstance(node, ast.Assign) and node.value in chosen:
            for target in node.targets:
                if isinstance(target, (ast.Name, ast.Attribute)):
                    put.setdefault(flow.key(target, scope), []).append(node.value)
        if not isinstance(node, ast.Call):
            continue
        given = given_to_loader(node, "dataset")
        if given in chosen:
            taken |= {given} if given is not None and _takes_data(flow, node, scope) else set()
        elif isinstance(given, (ast.Name, ast.Attribute)) and _takes_data(flow, node, scope):
            keys.add(flow.key(given, scope))
    taken |= {call for key in keys - {None} for call in put.get(key, ())}
    return {value for value in models if value.site not in taken}


def _takes_data(flow: Flow, call: ast.Call, scope: Scope) -> bool:
    """Whether a call makes a loader or a sampler."""
    if any(value.kind == "external" and value.ref in _SAMPLERS for value in flow.values(call.func, scope)):
        return True
    return any(value.site is call and is_loader_value(value) for value in flow.values(call, scope))
