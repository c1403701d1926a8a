"""What a program saves in its checkpoints beside tensors and plain containers, which ``torch.load`` refuses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice
from typing import Literal

from amp_rules.plan.old_torch.numpy_rates import has_numpy_rates
from amp_rules.plan.old_torch.old import OldProgram, Use
from amp_rules.plan.old_torch.value_origins import origins
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name
from amp_rules.torch.old_torch import NUMPY_ARITHMETIC, PICKLED_SETTINGS

Kind = Literal["settings", "numbers", "objects"]

_MAX_STEPS = 8
"""Variables, parameters and functions between what a checkpoint holds and what makes it."""


def pickled(old: OldProgram) -> Iterator[tuple[frozenset[str], Kind]]:
    """Yield the keys of each dictionary that is saved with such an object in it, and what that is."""
    values = old.program.flow.values
    for use in old.uses_of("torch.save"):
        call = use.call
        if use.target != "torch.save" or call is None or not call.args:
            continue
        for saved in values(call.args[0], old.tensors.names[use.module].scope_of(call)):
            located = old.program.locate(saved.site) if isinstance(saved.site, ast.Dict) else None
            if located is None:
                continue
            assert isinstance(saved.site, ast.Dict)
            kinds = {_kind(old, item, located[1], frozenset()) for item in saved.site.values}
            if any(has_numpy_rates(old, item, located[1]) for item in saved.site.values):
                kinds.add("numbers")
            keys = {
                key.value for key in saved.site.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
            keys |= set(_put_in_later(use, call.args[0]))
            if "settings" in kinds:
                yield frozenset(keys), "settings"
            elif "numbers" in kinds:
                yield frozenset(keys), "numbers"
            elif "objects" in kinds:
                yield frozenset(keys), "objects"


def _put_in_later(use: Use, saved: ast.expr) -> Iterator[str]:
    """Yield the keys that the function which saves a variable gives it: ``state["amp"] = ...``."""
    path = blocks.path_of(saved)
    for node in blocks.walk_body(blocks.body_of(use.module, saved)) if path is not None else ():
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and blocks.path_of(node.value) == path:
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                yield node.slice.value


def _kind(old: OldProgram, node: ast.expr, scope: Scope, asked: frozenset[ast.AST]) -> Kind | None:
    """What an expression may be that is no tensor and no plain number; None where nothing tells."""
    if node in asked or len(asked) > _MAX_STEPS:
        return None
    asked |= {node}
    values = old.program.flow.values(node, scope)
    refs = {value.ref for value in values if isinstance(value.ref, str)}
    if refs & PICKLED_SETTINGS:
        return "settings"
    if (refs & NUMPY_ARITHMETIC and not _is_of_one_of_several(old, node, scope)) or _is_mean_of_comparison(node):
        return "numbers"
    if any(value.kind == "instance" for value in values):
        return "objects"
    kinds = (_kind(old, item, where, asked) for item, where in origins(old, node, scope))
    return next((kind for kind in kinds if kind is not None), None)


def _is_of_one_of_several(old: OldProgram, node: ast.expr, scope: Scope) -> bool:
    """Whether a value is kept by one of several objects of a class, as meters: what one was given, all seem to hold."""
    if not isinstance(node, ast.Attribute):
        return False
    owners = {value.ref for value in old.program.flow.values(node.value, scope) if value.kind == "instance"}
    names = {owner.facts.node.name for owner in owners}
    made = (
        call
        for call, _, where in old.program.calls()
        if last_name(call.func) in names
        if any(value.site is call and value.ref in owners for value in old.program.flow.values(call, where))
    )
    return bool(owners) and len(list(islice(made, len(owners) + 1))) > len(owners)


def _is_mean_of_comparison(node: ast.expr) -> bool:
    """``(found == wanted).mean()``: NumPy's, as tensors of booleans have no mean."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "mean"
        and isinstance(node.func.value, ast.Compare)
    )
