"""Optimizers of Apex scripts that hold fewer parameters than their model, by how the file itself makes them.

``amp.master_params(optimizer)`` is then not ``model.parameters()``: the norm of the one's gradients is not the other's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

_PARAMETERS = frozenset({"parameters", "named_parameters"})
_MAX_DEPTH = 6


def holds_fewer(module: Module, optimizer: ast.expr, model: ast.expr) -> bool:
    """Whether a body makes the optimizer of parts of the model alone, or of an iterator that it runs through twice.

    False where that is not known: what the optimizer is given comes from elsewhere, or is made by a function.
    """
    body = blocks.body_of(module, optimizer)
    assigned = _assigned(body)
    name, whole = blocks.path_of(optimizer), blocks.path_of(model)
    made = [value for value in assigned.get(name or "", ()) if isinstance(value, ast.Call)]
    if whole is None or len(made) != 1:
        return False
    given = [*made[0].args[:1], *(item.value for item in made[0].keywords if item.arg == "params")]
    iterators: list[str] = []
    owners: list[str | None] = []
    for call, iterator in (found for item in given for found in _sources(item, assigned, _MAX_DEPTH)):
        owners.append(blocks.path_of(call.func.value) if isinstance(call.func, ast.Attribute) else None)
        if iterator is not None:
            iterators.append(iterator)
    if not owners or None in owners:
        return False
    if len(iterators) == len(owners) and len(set(iterators)) < len(iterators):
        return True
    return all(owner is not None and owner.startswith(f"{whole}.") for owner in owners)


def _assigned(body: ast.AST) -> dict[str, list[ast.expr]]:
    """What each variable of a body is assigned."""
    found: dict[str, list[ast.expr]] = {}
    for node in blocks.walk_body(body):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            path = blocks.path_of(target)
            if path is not None and isinstance(node, ast.Assign):
                found.setdefault(path, []).append(node.value)
    return found


def _sources(
    node: ast.expr, assigned: dict[str, list[ast.expr]], depth: int, name: str | None = None
) -> Iterator[tuple[ast.Call, str | None]]:
    """The calls that give the parameters in an expression, each with the variable that holds it as an iterator."""
    for part in walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in _PARAMETERS:
            yield part, name if part is node else None
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and depth:
            for value in assigned.get(part.id, ()):
                yield from _sources(value, assigned, depth - 1, part.id)
