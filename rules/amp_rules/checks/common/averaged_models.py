"""Models whose weights a loop averages in place, and where they are converted to half precision."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.origins import origins
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import literal
from amp_rules.source.syntax import last_name, walk

HALVES = frozenset({"half", "bfloat16"})
_WEIGHTS = frozenset({"parameters", "named_parameters", "state_dict", "values", "items"})
_KEEPS_TYPE = frozenset("cuda cpu to eval train requires_grad_ apply".split())
LONG = 0.99
"""Shorter averages change by more than the steps of half precision."""


def averaged_in_half(module: ModuleFacts) -> Iterator[ast.expr]:
    """What makes the models half whose weights a loop goes on averaging: each place once."""
    told: set[ast.expr] = set()
    for loop in module.index.loops:
        if isinstance(loop, ast.For):
            for model in _averaged_by(loop):
                for place in _made_half(module, model):
                    if place not in told:
                        told.add(place)
                        yield place


def _averaged_by(loop: ast.For) -> Iterator[ast.expr]:
    """The models in ``for e, p in zip(ema.parameters(), model.parameters())`` of which ``e`` is averaged."""
    if not (
        isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "zip" and isinstance(loop.target, ast.Tuple)
    ):
        return
    for target, given in zip(loop.target.elts, loop.iter.args, strict=False):
        name = target.elts[-1] if isinstance(target, ast.Tuple) and target.elts else target
        if isinstance(name, ast.Name) and _is_averaged(name.id, loop) and (model := _model_of(given)) is not None:
            yield model


def _model_of(given: ast.expr) -> ast.expr | None:
    """The model whose weights are gone through."""
    found = None
    while isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr in _WEIGHTS:
        found = given = given.func.value
    return found if isinstance(found, (ast.Name, ast.Attribute)) else None


def _is_averaged(name: str, loop: ast.For) -> bool:
    """Whether a loop scales a tensor in place by a long decay and adds to it."""
    scaled = added = False
    for item in walk(loop):
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and _starts_with(item.func.value, name):
            if item.func.attr in ("mul_", "lerp_") and item.args:
                decay = literal(item.args[-1])
                decay = 1 - decay if item.func.attr == "lerp_" and isinstance(decay, float) else decay
                scaled |= not isinstance(decay, (int, float)) or LONG <= decay < 1
            added |= item.func.attr in ("add_", "lerp_")
    return scaled and added


def _starts_with(node: ast.expr, name: str) -> bool:
    """``e``, ``e.data``, ``e.mul_(decay)``; ``e.grad`` is something else."""
    while isinstance(node, (ast.Attribute, ast.Call)):
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            return False
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id == name


def _made_half(module: ModuleFacts, model: ast.expr) -> Iterator[ast.expr]:
    """The conversions of a model, or of what it is a copy of; of that, the copy."""
    values = module.index.values_of(model)
    copied = next((value for value in values if "copy" in last_name(getattr(value, "func", value))), None)
    for node in _conversions(module, model):
        yield node if copied is None or any(node in walk(value) for value in values) else copied


def _conversions(module: ModuleFacts, model: ast.expr, depth: int = 4) -> Iterator[ast.expr]:
    """``Net().half()`` of ``Net().half().cuda()``, as far as this file tells."""
    for found in origins(module, model):
        node = found.node
        if found.module is not module or not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr in HALVES and not node.args:
            yield node
        elif depth and node.func.attr in _KEEPS_TYPE and "float" not in ast.unparse(node).partition(".to(")[2]:
            yield from _conversions(module, node.func.value, depth - 1)
