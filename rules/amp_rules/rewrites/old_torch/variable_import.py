"""Take the import of Variable out.

## What it does
`from torch.autograd import Variable` goes where nothing of the file uses the name any more, and no other file takes it
from there.

## Why
The import says that the file wraps its tensors, which it does not.

## Before
    from torch.autograd import Variable, grad

## After
    from torch.autograd import grad

## When it declines
Where the name is still used, in comments and strings not counted.

## Leaving it out
Yes: an import that is not used does no harm.

## Source
https://pytorch.org/docs/stable/autograd.html#variable-deprecated
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.resolver import imported
from amp_rules.text.actions import EditNames, Remove
from amp_rules.torch import old_torch as old_names
from amp_rules.torch.canonical_names import canonical

RULE = Rule("AMP502", "variable-import", "Variable is not imported any more.", "modern", optional=True, only_asked=True)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each import of ``Variable`` that nothing needs."""
    for module in old.modules:
        names = old.tensors.names[module]
        for statement in names.import_statements:
            unused = [alias for alias in statement.names if _is_unused(old, module, statement, alias)]
            if not unused or (len(unused) == len(statement.names) and _is_guarded(module, statement)):
                continue
            message = "nothing of the file uses `Variable`"
            if len(unused) == len(statement.names):
                yield change(RULE, module, statement, message, Remove(statement, keep_comments=True))
            else:
                action = EditNames(statement, {alias.name: None for alias in unused})
                yield change(RULE, module, statement, message, action)


def _is_unused(old: OldProgram, module: Module, statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    if canonical(imported(statement, alias) or "") != old_names.VARIABLE:
        return False
    if module.path.name == "__init__.py":
        return False
    name = alias.asname or alias.name
    used = any(isinstance(node, ast.Name) and node.id == name for node in module.nodes)
    exported = any(isinstance(node, ast.Constant) and node.value == name for node in module.nodes)
    return not (used or exported or old.wanted_elsewhere(module, name) or old.looked_up(module, name))


def _is_guarded(module: Module, statement: ast.stmt) -> bool:
    """Whether the import is all that a ``try`` tries."""
    where = blocks.place(module, statement)
    return isinstance(where.parent, ast.Try) and len(where.suite) == 1
