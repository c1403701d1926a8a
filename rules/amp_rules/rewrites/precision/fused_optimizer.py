"""Use the fused kernel of the optimizer.

## What it does
`torch.optim.Adam(...)`, `AdamW`, `SGD` and `Adagrad` become those of `amp.optim`: same name, same
arguments, same state. At O0 they are exactly torch's default; else the fused kernel runs where the device
has it. An import that nothing else reads goes, also in a file that the script alone imports: `import torch.optim as
optim`.

## Why
One kernel for all parameters: two to ten times the speed of the step on a CPU, 10 to 15 % of the whole on a GPU.

## Before
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

## After
    optimizer = amp.optim.AdamW(model.parameters(), lr=1e-3)

## When it declines
With `--no-fused`, for optimizers without a fused kernel, and where the class is chosen at run time.

## Leaving it out
Yes: PyTorch's own optimizer takes the same steps, more slowly. `--no-fused` says the same for all of them.

## Source
https://pytorch.org/docs/stable/optim.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.rule import Rule
from amp_rules.source.modules import Module
from amp_rules.source.resolver import is_variable
from amp_rules.torch.optimizers import FUSED_OPTIMIZERS

RULE = Rule("AMP301", "fused-optimizer", "The optimizer uses its fused kernel.", "precision", optional=True)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each optimizer that has a fused kernel."""
    if not context.options.fused:
        return
    for call, module in _constructors(context):
        name = _fused_name(context, call)
        if name is not None:
            written = context.vocabulary.fused_optimizer(module, call, name)
            yield Change.written(RULE, module, call, f"`{name}` uses its fused kernel, except at O0", written)


def _constructors(context: Context) -> list[tuple[ast.Call, Module]]:
    found: dict[ast.Call, Module] = {}
    for step in context.precision.steps:
        for value in context.program.flow.values(step.optimizer, step.scope):
            module = context.program.module_of(value.site) if value.site is not None else None
            if isinstance(value.site, ast.Call) and module is not None:
                found[value.site] = module
    return sorted(found.items(), key=lambda item: (str(item[1].path), item[0].lineno))


def _fused_name(context: Context, call: ast.Call) -> str | None:
    located = context.program.locate(call)
    if located is None or not isinstance(call.func, (ast.Name, ast.Attribute)):
        return None
    names = context.program.names(call.func, located[1])
    # What a variable holds may have arguments already (``partial(Adam, lr=0.1)``), or come from elsewhere, too.
    if (
        len(names) != 1
        or is_variable(call.func, located[1])
        or any(item.arg in ("fused", "foreach", "capturable") for item in call.keywords)
    ):
        return None
    head, _, last = names.pop().rpartition(".")
    return last if head.startswith("torch.optim") and last in FUSED_OPTIMIZERS else None
