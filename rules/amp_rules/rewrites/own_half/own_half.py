"""Remove half precision written by hand.

## What it does
`model.half()`, `network_to_half(model)`, `FP16_Optimizer`, float32 copies of the parameters (`prep_param_lists`) and a
loss scale by hand go, from Apex's `fp16_utils` or from a copy of it in the project. `optimizer.backward(loss)` becomes
`loss.backward()`. Where `if args.fp16:` and its `else:` are the same steps by then, the plain ones stay. The script's
own flag remains the switch: `amp.init(opt_level="O2" if args.fp16 else "O0")`. Where a model tests for float16
(`x.type() == "torch.cuda.HalfTensor"`), that gets `dtype="fp16"`.

## Why
Copies, scale and skipped steps by hand are what the scaler and the level O2 do, with overflows handled alike on all
ranks. `apex.fp16_utils` no longer exists.

## Before
    if args.fp16:
        model = network_to_half(model)
        optimizer = FP16_Optimizer(optimizer, dynamic_loss_scale=True)
    if args.fp16:
        optimizer.backward(loss)
    else:
        loss.backward()

## After
    amp.init(opt_level="O2" if args.fp16 else "O0")
    amp.scaler.scale(loss).backward()

## When it declines
When something of it is not understood: models that are made half under different conditions, an optimizer's state that
only `FP16_Optimizer` has (`optimizer.overflow`), copies of the parameters that are read elsewhere, gradients that are
divided by a number by which no loss is multiplied, a flag that the main script does not know, a model that makes a
part of itself float32 as it runs (`self.head = self.head.float()`), which O2 would compute in half again. Half
precision for evaluation alone stays.

## Leaving it out
No: what is left of it would scale twice, or keep a model half for which there are no float32 weights.

## Source
https://nvidia.github.io/apex/fp16_utils.html
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.own_half.edits import HalfProgram
from amp_rules.plan.rule import Rule

RULE = Rule("AMP420", "own-half-precision", "The script's own half precision becomes a level.", "precision")


def changes(half: HalfProgram) -> Iterator[Change]:
    """Yield an edit for each place."""
    for edit in half.edits:
        yield Change(RULE, edit.module, edit.node, edit.message, edit.actions)
