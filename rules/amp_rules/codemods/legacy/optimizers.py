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

from amp_rules.context import Change
from amp_rules.legacy.file import LegacyFile
from amp_rules.rewrite import Replace, substitute
from amp_rules.rule import Rule
from amp_rules.tables import apex_api as api

RULE = Rule("AMP407", "apex-optimizers", "The runtime has Apex's optimizers.", "precision")


def changes(file: LegacyFile) -> Iterator[Change]:
    """Yield an edit for each use."""
    for use in file.references.uses:
        template = api.OPTIMIZER_PATHS.get(use.target)
        if template is not None:
            code = file.code(template)
            message = f"`{code}` has the same arguments and defaults"
            yield Change(RULE, file.module, use.node, message, [Replace(use.node, substitute(code))])
