"""Copy without waiting by the argument's present name.

## What it does
`x.cuda(async=True)` becomes `x.cuda(non_blocking=True)`.

## Why
`async` is a word of the language since Python 3.7: the file does not even parse. PyTorch 0.4 renamed the argument.

## Before
    target = target.cuda(async=True)

## After
    target = target.cuda(non_blocking=True)

## When it declines
Where the file does not parse for another reason as well, such as Python 2's `print`.

## Leaving it out
Yes: the file stays as it is, with the error that Python reports.

## Source
https://pytorch.org/docs/stable/generated/torch.Tensor.cuda.html
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.old import OldProgram
from amp_rules.plan.rule import Rule

RULE = Rule("AMP504", "async-copy", "Copies that do not wait are asked for by non_blocking.", "modern", optional=True)
MESSAGE = "`async` is a word of Python since 3.7; the argument is called `non_blocking`"


def changes(old: OldProgram) -> Iterator[Change]:
    """Nothing: it takes place before the file is parsed, see :mod:`amp_rules.plan.old_torch.async_argument`."""
    return iter(())
