"""Say by reduction= how a loss is reduced.

## What it does
`size_average=` and `reduce=` of losses become `reduction="mean"`, `"sum"` or `"none"`, given by position or by name.

## Why
The two are deprecated since PyTorch 0.4.1 and override `reduction`.

## Before
    criterion = nn.CrossEntropyLoss(weight, size_average=False)

## After
    criterion = nn.CrossEntropyLoss(weight, reduction="sum")

## When it declines
Where their values are computed: None stands for True, so that no expression says the same.

## Leaving it out
Yes: the old arguments work, with a warning.

## Source
https://pytorch.org/docs/stable/generated/torch.nn.MSELoss.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.edits import without_arguments
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.text.actions import Replace
from amp_rules.torch import old_torch as old_names

RULE = Rule(
    "AMP506", "reduction", "How a loss is reduced is said by reduction.", "modern", optional=True, only_asked=True
)

_OLD = ("size_average", "reduce")


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each loss with one of the old arguments."""
    for use in old.uses_of("torch.nn."):
        parameters = _parameters(use.target)
        call = use.call
        if call is None or parameters is None:
            continue
        if any(isinstance(item, ast.Starred) for item in call.args) or len(call.args) > len(parameters):
            continue
        positions = {parameters[index]: index for index in range(len(call.args))}
        positions |= {item.arg: len(call.args) + index for index, item in enumerate(call.keywords) if item.arg}
        every = [*call.args, *(item.value for item in call.keywords)]
        given = {name: every[positions[name]] for name in _OLD if name in positions}
        if not given or any(item.arg is None for item in call.keywords):
            continue
        text = use.module.text(call)
        if not all(isinstance(value, ast.Constant) for value in given.values()):
            old.leave(
                RULE,
                use.module,
                call,
                f"`{text}` computes its {' and '.join(given)}",
                'write reduction="mean", "sum" or "none"',
            )
            continue
        wanted = _wanted({name: getattr(value, "value", None) for name, value in given.items()})
        dropped = {positions[name] for name in given}
        added = ""
        if wanted is not None:
            dropped |= {positions["reduction"]} if "reduction" in positions else set()
            added = f'reduction="{wanted}"' if wanted != "mean" else ""
        # What stood behind an argument that goes is no longer at its position.
        named = {
            index: parameters[index] for index in range(len(call.args)) if index > min(dropped) and index not in dropped
        }
        edit = without_arguments(*sorted(dropped), added=added, named=named)
        message = f'{" and ".join(given)} of `{use.module.text(use.node)}` mean reduction="{wanted or "mean"}"'
        yield change(RULE, use.module, call, message, Replace(call, edit))


def _parameters(target: str) -> tuple[str, ...] | None:
    head, _, last = target.rpartition(".")
    if head == "torch.nn":
        return old_names.LOSS_MODULES.get(last)
    return old_names.LOSS_FUNCTIONS.get(last) if head == "torch.nn.functional" else None


def _wanted(given: dict[str, object]) -> str | None:
    """As PyTorch reads the two; None when neither says anything."""
    if all(value is None for value in given.values()):
        return None
    average, reduce = given.get("size_average"), given.get("reduce")
    if reduce is not None and not reduce:
        return "none"
    return "mean" if average is None or average else "sum"
