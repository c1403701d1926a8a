"""Call functions by their present names.

## What it does
`nn.utils.clip_grad_norm` becomes `clip_grad_norm_`, `nn.init.xavier_uniform` becomes `xavier_uniform_` and so on with
all initialisers; `F.upsample` becomes `F.interpolate`, `transforms.Scale` becomes `Resize`. All take the same
arguments and return the same.

## Why
The old names warn, or are gone.

## Before
    nn.init.xavier_uniform(layer.weight)
    torch.nn.utils.clip_grad_norm(model.parameters(), 5)

## After
    nn.init.xavier_uniform_(layer.weight)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5)

## When it declines
Where another file of the project takes the old name from this one, or the file looks it up in a text, as
`globals()["xavier_uniform"]` does.

## Leaving it out
Yes: the old names work as long as PyTorch has them.

## Source
https://pytorch.org/docs/stable/nn.init.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.edits import last_name
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.source.modules import Module
from amp_rules.source.resolver import imported
from amp_rules.text.actions import EditNames, Replace
from amp_rules.text.expression_edits import substitute
from amp_rules.torch import old_torch as old_names
from amp_rules.torch.canonical_names import canonical

RULE = Rule("AMP507", "renamed-functions", "Functions are called by their present names.", "modern", optional=True)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each use of an old name, and for each import of one."""
    kept: set[tuple[Module, str]] = set()
    for module in old.modules:
        for statement in old.tensors.names[module].import_statements:
            if isinstance(statement, ast.ImportFrom):
                yield from _import(old, module, statement, kept)
    for use in old.uses:
        new = old_names.RENAMED.get(use.target)
        if new is None:
            continue
        last = new.rpartition(".")[2]
        message = f"`{use.target.rpartition('.')[2]}` is called `{last}` now"
        if isinstance(use.node, ast.Attribute):
            yield change(RULE, use.module, use.node, message, Replace(use.node, last_name(last)))
        elif (use.module, use.node.id) not in kept and use.node.id == use.target.rpartition(".")[2]:
            if _is_imported_here(old, use.module, use.node):
                yield change(RULE, use.module, use.node, message, Replace(use.node, substitute(last)))


def _import(
    old: OldProgram, module: Module, statement: ast.ImportFrom, kept: set[tuple[Module, str]]
) -> Iterator[Change]:
    for alias in statement.names:
        target = canonical(imported(statement, alias) or "")
        new = old_names.RENAMED.get(target)
        if new is None:
            continue
        last = new.rpartition(".")[2]
        why = _why_kept(old, module, alias.name, last) if alias.asname is None else None
        if why is not None:
            kept.add((module, alias.name))
            old.leave(RULE, module, statement, why, f"use `{last}` instead there and here")
            continue
        message = f"`{alias.name}` is called `{last}` now"
        yield change(RULE, module, alias, message, EditNames(statement, {alias.name: last}))


def _why_kept(old: OldProgram, module: Module, name: str, new: str) -> str | None:
    """Why an import keeps the old name; None where nothing else needs it."""
    if old.wanted_elsewhere(module, name):
        return f"other code takes the name `{name}` from here"
    if _is_taken(module, new):
        return f"the file calls something else `{new}`"
    if old.looked_up(module, name):
        return f"the file may look up `{name}` by its name in a text"
    return None


def _is_taken(module: Module, name: str) -> bool:
    """Whether the file gives the new name to something else."""
    return any(
        (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store))
        or (isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name)
        for node in module.nodes
    )


def _is_imported_here(old: OldProgram, module: Module, node: ast.Name) -> bool:
    """Whether an import of this file binds the name, which changes with it."""
    return bool(old.tensors.names[module].targets(node))
