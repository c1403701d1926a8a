"""Take abstract classes from collections.abc.

## What it does
`collections.Iterable` becomes `collections.abc.Iterable`, and `from collections import Iterable` imports from
`collections.abc`; so with `Mapping`, `Sequence`, `Callable` and the rest.

## Why
`collections` does not have them since Python 3.10.

## Before
    from collections import Iterable, OrderedDict

## After
    from collections.abc import Iterable
    from collections import OrderedDict

## When it declines
In the `except` of a `try` that imports from `collections.abc` first, and in a branch that only an older Python takes
(`if sys.version_info < (3, 3):`).

## Leaving it out
Yes: the import stays and raises ImportError.

## Source
https://docs.python.org/3/library/collections.abc.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.old_torch.python_versions import is_for_an_older_python
from amp_rules.plan.rule import Rule
from amp_rules.source.modules import Module
from amp_rules.text.actions import EditNames, Insert, Remove, Replace
from amp_rules.text.expression_edits import substitute
from amp_rules.torch import old_torch as old_names

RULE = Rule("AMP515", "collections-abc", "Abstract classes come from collections.abc.", "modern", optional=True)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each import and each use by its path."""
    for use in old.uses_of("collections."):
        name = use.target.removeprefix("collections.")
        if name in old_names.ABSTRACT and isinstance(use.node, ast.Attribute):
            text = old.source(use.module, use.node.value)
            message = f"`{name}` is in collections.abc"
            yield change(RULE, use.module, use.node, message, Replace(use.node, substitute(f"{text}.abc.{name}")))
    for module in old.modules:
        for statement in old.tensors.names[module].import_statements:
            if isinstance(statement, ast.ImportFrom) and statement.module == "collections" and not statement.level:
                yield from _import(module, statement)


def _import(module: Module, statement: ast.ImportFrom) -> Iterator[Change]:
    moved = [alias for alias in statement.names if alias.name in old_names.ABSTRACT]
    if not moved or any(isinstance(parent, (ast.Try, ast.ExceptHandler)) for parent in module.ancestors(statement)):
        return
    if is_for_an_older_python(module, statement):
        return
    names = ", ".join(ast.unparse(alias) for alias in moved)
    insert = Insert(statement, f"from collections.abc import {names}")
    if len(moved) == len(statement.names):
        rest = Remove(statement)
        yield change(RULE, module, statement, f"`{names}` is in collections.abc", insert, rest)
    else:
        drop = EditNames(statement, {alias.name: None for alias in moved})
        yield change(RULE, module, statement, f"`{names}` is in collections.abc", insert, drop)
