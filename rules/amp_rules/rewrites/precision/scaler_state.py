"""Keep the loss scale in checkpoints that training goes on from.

## What it does
A dictionary that is saved with the state of an optimizer gets an entry for that of the scaler. Where the script loads
it and gives the optimizer its state back, the scaler gets its own. A checkpoint without the entry, as the original
wrote them, loads as before; the other entries stay what they are.

## Why
A run that is resumed would start again from a scale of 65536. Where training had settled at 1024, the first six steps
overflow and are skipped; where the scale had grown, small gradients are lost until it has grown again.

## Before
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    checkpoint = torch.load(path)
    optimizer.load_state_dict(checkpoint["optimizer"])

## After
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": amp.scaler.state_dict()}, path
    )

    checkpoint = torch.load(path)
    optimizer.load_state_dict(checkpoint["optimizer"])
    amp.scaler.load_state_dict(checkpoint.get("scaler", {}))

## When it declines
Where not both sides are understood: the keys of the dictionary stand in the script, the state comes out of what
`torch.load` gives under the same key, and everything that holds the dictionary asks it for single keys. Where something
goes over all keys, copies the dictionary or hands it to a library, its keys stay what they are; so do those of scripts
that never load an optimizer's state, and of scripts for Apex. With `--dtype bf16` nothing is scaled. Where `scaler` is
taken, the entry has another name. A note (AMP380) says where training goes on without the scale.

## Leaving it out
Yes: a resumed run trains with its first scale again, and finds a new one.

## Source
https://docs.pytorch.org/docs/stable/notes/amp_examples.html#saving-resuming
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.rule import Rule
from amp_rules.plan.saved_scale import saved_scale

RULE = Rule("AMP118", "scaler-state", "Checkpoints hold the loss scale.", "precision", optional=True)


def changes(context: Context) -> Iterator[Change]:
    """Yield an entry for each dictionary, and a line for each place that loads one."""
    if context.initialised or context.keeps_precision or context.options.dtype == "bf16":
        return
    found = saved_scale(context.program)
    if found is None:
        return
    words = context.vocabulary
    for saved in found.saved:
        module, node = saved.site.module, saved.site.node
        key = f"{saved.quote}{found.key}{saved.quote}"
        message = f"the checkpoint holds the scale beside the state under `{saved.key}`"
        if isinstance(node, (ast.Dict, ast.Call)):
            written = words.scale_saved(module, node, key)
        else:
            written = words.scale_stored(module, saved.site.statement, saved.variable, key)
        yield Change.written(RULE, module, node, message, written)
    for loaded in found.loaded:
        module, statement = loaded.site.module, loaded.site.statement
        key = f"{loaded.quote}{found.key}{loaded.quote}"
        message = f"the scale is restored from `{loaded.variable}`, where that has one"
        written = words.scale_restored(module, statement, loaded.variable, key)
        yield Change.written(RULE, module, statement, message, written)
