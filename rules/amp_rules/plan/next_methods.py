"""Calls of ``.next()`` on the iterators of loaders, which lost that method in PyTorch 1.13."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.plan.notes import NEXT_METHOD, note
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.torch.data import LOADERS_OF_TORCH


def notes(program: Program) -> Iterator[Note]:
    """Yield one for each variable whose ``.next()`` ends the script."""
    told: set[str] = set()
    for node, _, scope in program.nodes():
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "next"):
            continue
        text = scope.module.text(node.func.value)
        if node.args or node.keywords or text in told:
            continue
        values = {value for value in program.flow.values(node.func.value, scope) if value.kind != "constant"}
        # A loader and its iterator are one value; neither has the method.
        if any(map(_is_loader, values)) and all(_is_loader(value) or value.kind == "attribute" for value in values):
            told.add(text)
            why = f"`{text}.next()` raises AttributeError: iterators of a DataLoader have no `next` since PyTorch 1.13"
            yield note(NEXT_METHOD, scope.module, node, f"{why}; `--modernize` writes `next({text})`")


def _is_loader(value: Value) -> bool:
    return value.kind == "object" and value.ref in LOADERS_OF_TORCH
