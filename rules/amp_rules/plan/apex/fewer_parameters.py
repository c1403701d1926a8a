"""Optimizers of Apex scripts that hold fewer parameters than their model, by how the file itself makes them.

``amp.master_params(optimizer)`` is then not ``model.parameters()``: the norm of the one's gradients is not the other's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

_PARAMETERS = frozenset({"parameters", "named_parameters"})
_MAX_DEPTH = 6


def holds_fewer(module: Module, optimizer: ast.expr, model: ast.expr) -> bool:
    """Whether a body makes the optimizer of parts of the model alone, or of an iterator that it runs through twice.

    Parts are those of a layer, and what each of its groups leaves out of the whole: ``if "encoder" not in name``. False
    where that is not known: what the optimizer is given comes from elsewhere, or is made by a function.
    """
    body = blocks.body_of(module, optimizer)
    assigned = _assigned(body)
    name, whole = blocks.path_of(optimizer), blocks.path_of(model)
    made = [value for value in assigned.get(name or "", ()) if isinstance(value, ast.Call)]
    if whole is None or len(made) != 1:
        return False
    given = [*made[0].args[:1], *(item.value for item in made[0].keywords if item.arg == "params")]
    lists = [value for item in given for value in _lists(item, assigned, _MAX_DEPTH)]
    if any(_leaves_out(item, whole, assigned) for item in lists):
        return True
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


def _lists(node: ast.expr, assigned: dict[str, list[ast.expr]], depth: int) -> Iterator[ast.expr]:
    """Yield what an argument may be, through variables: ``groups`` has one value in each branch."""
    if isinstance(node, ast.Name) and depth:
        for value in assigned.get(node.id, ()):
            yield from _lists(value, assigned, depth - 1)
    else:
        yield node


def _leaves_out(node: ast.expr, whole: str, assigned: dict[str, list[ast.expr]]) -> bool:
    """Whether all comprehensions over a model's parameters in an expression have a condition in common."""
    calls = [part for part in walk(node) if isinstance(part, ast.Call) and _is_whole(part, whole)]
    found = [part for part in walk(node) if isinstance(part, _COMPREHENSIONS) and len(part.generators) == 1]
    kept = [part.generators[0] for part in found if _runs_over(part.generators[0], whole, assigned)]
    read = {part for item in kept for part in walk(item.iter)}
    if not kept or any(call not in read for call in calls):
        return False  # ``{"params": model.parameters()}`` beside them
    conditions = [{ast.unparse(test) for test in _all_of(item.ifs) if not _asks_gradient(test)} for item in kept]
    return bool(set.intersection(*conditions))


_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.SetComp)


def _is_whole(call: ast.Call, whole: str) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr in _PARAMETERS
        and blocks.path_of(function.value) == whole
        and not call.args
    )


def _runs_over(item: ast.comprehension, whole: str, assigned: dict[str, list[ast.expr]]) -> bool:
    """Whether a comprehension takes the model's parameters one by one; pairs that it keeps as pairs are no group."""
    values = [item.iter]
    if isinstance(item.iter, ast.Name) and isinstance(item.target, ast.Tuple):
        values = assigned.get(item.iter.id, [])
    inner = [value.args[0] if _is_list(value) else value for value in values]
    return bool(inner) and all(isinstance(value, ast.Call) and _is_whole(value, whole) for value in inner)


def _is_list(value: ast.expr) -> TypeGuard[ast.Call]:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in ("list", "tuple") and len(value.args) == 1


def _all_of(tests: list[ast.expr]) -> Iterator[ast.expr]:
    for test in tests:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            yield from _all_of(test.values)
        else:
            yield test


def _asks_gradient(test: ast.expr) -> bool:
    """Whether what a test leaves out has no gradient, and so no part in a norm of gradients."""
    return any(isinstance(part, ast.Attribute) and part.attr in ("requires_grad", "grad") for part in walk(test))


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
