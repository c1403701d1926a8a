"""Take Apex's optimizers from the runtime.

## What it does
`apex.optimizers.FusedAdam`, `FusedLAMB`, `FusedSGD` and their like become `amp.optim.FusedAdam` and so on, with the
same arguments, defaults and states; so do `LARC` and Ascend's `NpuFused...`.

## Why
The runtime's classes use PyTorch's fused kernels where they compute the same, run on every device, and load what
Apex's have saved.

## Before
    from apex.optimizers import FusedAdam
    optimizer = FusedAdam(model.parameters(), lr=1e-3)

## After
    optimizer = amp.optim.FusedAdam(model.parameters(), lr=1e-3)

## When it declines
Never.

## Leaving it out
No: the classes no longer exist without a build of Apex.

## Source
https://nvidia.github.io/apex/optimizers.html
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import substitute
from amp_rules.torch import apex as api

RULE = Rule(
    "AMP407",
    "apex-optimizers",
    "Optimizers with the same arithmetic take the place of Apex's.",
    "precision",
    ways=("idiom",),
    after=("AMP412",),
)


def changes(file: ApexFile) -> Iterator[Change]:
    """Yield an edit for each use."""
    for use in file.references.uses:
        code = file.vocabulary.counterpart(file.module, use.target) if use.target in api.OPTIMIZER_PATHS else None
        if code is not None:
            message = f"`{code}` has the same arguments and defaults"
            yield Change(RULE, file.module, use.node, message, [Replace(use.node, substitute(code))])
