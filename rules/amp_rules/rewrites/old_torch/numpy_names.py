"""Call NumPy's types by names that it has.

## What it does
`np.int`, `np.float`, `np.bool` and `np.object` become Python's `int`, `float`, `bool` and `object`, which they were;
`np.float_` becomes `np.float64`, `np.Inf` becomes `np.inf`, and so on with what NumPy 1.24 and 2.0 have taken out.

## Why
They raise AttributeError.

## Before
    labels = labels.astype(np.int)

## After
    labels = labels.astype(int)

## When it declines
Where the file gives Python's name to something else.

## Leaving it out
Yes: the line stays and raises AttributeError.

## Source
https://numpy.org/doc/stable/release/1.24.0-notes.html#expired-deprecations
https://numpy.org/doc/stable/numpy_2_0_migration_guide.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.edits import last_name
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import substitute
from amp_rules.torch import old_torch as old_names

RULE = Rule("AMP514", "numpy-names", "NumPy's types are called by names that it has.", "modern", optional=True)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each name."""
    for use in old.uses_of("numpy."):
        new = old_names.NUMPY.get(use.target)
        if new is None or not isinstance(use.node, ast.Attribute):
            continue
        text = use.module.text(use.node)
        if new.startswith("np."):
            message = f"NumPy has no `{text}` any more"
            yield change(RULE, use.module, use.node, message, Replace(use.node, last_name(new.removeprefix("np."))))
        elif not old.binds(use.module, new):
            message = f"`{text}` was Python's `{new}`"
            yield change(RULE, use.module, use.node, message, Replace(use.node, substitute(new)))
