"""Do without torch._six.

## What it does
`string_classes` becomes `(str, bytes)`, `int_classes` becomes `int`, `PY3` becomes `True`, and a condition on it
goes, `container_abcs` is `collections.abc` and `inf` comes from `math`.

## Why
`torch._six` held what differed between Python 2 and 3. It is gone since PyTorch 2.0, and its import raises
ModuleNotFoundError.

## Before
    from torch._six import container_abcs, string_classes

    if isinstance(item, string_classes):

## After
    import collections.abc as container_abcs

    if isinstance(item, (str, bytes)):

## When it declines
In a `try`, which has an answer of its own, and for other names.

## Leaving it out
Yes: the import stays and raises ModuleNotFoundError.

## Source
https://github.com/pytorch/pytorch/pull/94709
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.old import OldProgram, Use, change
from amp_rules.plan.rule import Rule
from amp_rules.source.index import leaves
from amp_rules.source.modules import Module
from amp_rules.text.actions import Action, Insert, Remove, Replace, Unwrap
from amp_rules.text.expression_edits import substitute
from amp_rules.torch import old_torch as old_names

RULE = Rule("AMP521", "six", "What torch._six held comes from Python.", "modern", optional=True)

_RECIPE = "take the names from Python's own library"


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each import and each use."""
    for module in old.modules:
        for statement in old.tensors.names[module].import_statements:
            if isinstance(statement, ast.ImportFrom) and statement.module == "torch._six" and not statement.level:
                yield from _import(old, module, statement)
            elif not _is_tried(module, statement) and any(_imports_whole(statement, item) for item in statement.names):
                old.refuse(RULE, module, statement, "`torch._six` was removed", _RECIPE)
    for use in old.uses:
        # ``torch._six.PY3``, of the package itself: what was imported from the module goes with its import.
        if not isinstance(use.node, ast.Attribute) or _is_tried(use.module, use.node):
            continue
        if use.target in old_names.SIX_VALUES:
            yield _value(use)
        elif use.target.startswith("torch._six"):
            old.refuse(RULE, use.module, use.node, f"`{use.target}` was removed", _RECIPE)


def _is_tried(module: Module, node: ast.AST) -> bool:
    """Whether the script has an answer of its own to what is missing."""
    return any(isinstance(parent, ast.Try) for parent in module.ancestors(node))


def _imports_whole(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    """``import torch._six``, ``from torch import _six``."""
    if isinstance(statement, ast.Import):
        return alias.name == "torch._six"
    return statement.module == "torch" and not statement.level and alias.name == "_six"


def _import(old: OldProgram, module: Module, statement: ast.ImportFrom) -> Iterator[Change]:
    if _is_tried(module, statement):
        return
    targets = {alias: f"torch._six.{alias.name}" for alias in statement.names}
    if not all(target in old_names.SIX or target in old_names.SIX_VALUES for target in targets.values()):
        old.refuse(RULE, module, statement, "`torch._six` was removed", _RECIPE)
        return
    values = {target for target in targets.values() if target in old_names.SIX_VALUES}
    if any(old.wanted_elsewhere(module, alias.asname or alias.name) for alias in statement.names if values):
        old.leave(RULE, module, statement, "other files take its names from here", "define the names in this file")
        return
    for use in old.uses:
        if use.module is module and use.target in values:
            if isinstance(use.node, ast.Name):
                yield _value(use)
    lines = [_line(old_names.SIX[target], alias) for alias, target in targets.items() if target in old_names.SIX]
    actions: list[Action] = [Insert(statement, line, order=order) for order, line in enumerate(lines)]
    message = "`torch._six` is gone"
    yield change(RULE, module, statement, message, *actions, Remove(statement, keep_comments=not lines))


def _value(use: Use) -> Change:
    code = old_names.SIX_VALUES[use.target]
    message = f"`{use.target}` was `{code}` in Python 3"
    holder = use.module.parents[use.node]
    if code == "True" and isinstance(holder, ast.If) and holder.test is use.node and not _ends_early(holder):
        return change(RULE, use.module, holder, message, Unwrap(holder, ("body",)))
    return change(RULE, use.module, use.node, message, Replace(use.node, substitute(code)))


def _ends_early(branch: ast.If) -> bool:
    """Whether a condition leaves what stands below it to Python 2, by a ``return``."""
    return not branch.orelse and leaves(branch.body)


def _line(line: str, alias: ast.alias) -> str:
    """The import under the name that the file has for it."""
    if alias.asname is None:
        return line
    head, _, _ = line.partition(" as ")
    return f"{head} as {alias.asname}"
