"""Set the default data type.

## What it does
`torch.set_default_tensor_type(torch.DoubleTensor)` becomes `torch.set_default_dtype(torch.float64)`, and so with the
other types of the CPU.

## Why
`set_default_tensor_type` is deprecated since PyTorch 2.1.

## Before
    torch.set_default_tensor_type("torch.DoubleTensor")

## After
    torch.set_default_dtype(torch.float64)

## When it declines
Where the program sets a type of CUDA anywhere: that decides where tensors are made as well, and
`torch.set_default_device` does so in more places.

## Leaving it out
Yes: the old function works, with a warning.

## Source
https://pytorch.org/docs/stable/generated/torch.set_default_dtype.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.old import OldProgram, Use, change
from amp_rules.plan.rule import Rule
from amp_rules.source.resolver import names_of
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import substitute
from amp_rules.torch import old_torch as old_names

RULE = Rule(
    "AMP520", "default-type", "The default data type is set by itself.", "modern", optional=True, only_asked=True
)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each call, if all of the program set types of the CPU."""
    calls = [(use, use.call) for use in old.uses if use.target == "torch.set_default_tensor_type"]
    kinds = [_dtype(old, use, call) if call is not None else None for use, call in calls]
    for (use, call), dtype in zip(calls, kinds, strict=True):
        torch = names_of(use.module).name_of("torch")
        if call is None or torch is None or None in kinds:
            old.leave(
                RULE,
                use.module,
                call or use.node,
                "the default type decides where tensors are made as well, or is computed",
                "use torch.set_default_dtype, and torch.set_default_device if tensors are to be made on the GPU",
            )
            continue
        code = f"{torch}.set_default_dtype({torch}.{dtype})"
        message = "`set_default_tensor_type` is deprecated"
        yield change(RULE, use.module, call, message, Replace(call, substitute(code)))


def _dtype(old: OldProgram, use: Use, call: ast.Call) -> str | None:
    if len(call.args) != 1 or call.keywords:
        return None
    argument = call.args[0]
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        target: str | None = argument.value
    else:
        target = old.tensors.target(use.module, argument)
    head, _, last = (target or "").rpartition(".")
    return old_names.DTYPES.get(last) if head == "torch" else None
