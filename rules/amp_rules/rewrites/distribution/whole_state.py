"""Put together what a checkpoint or a norm needs of a sharded model.

## What it does
With `--shard` or `--shard-embeddings`, `model.state_dict()` and `optimizer.state_dict()` become
`amp.full_state_dict(...)` where the state is saved: all processes give their shards, and the main process gets whole
tensors, under the names that they had. Then `amp.on_main(torch.save)(...)` lets it alone write.
`torch.nn.utils.clip_grad_norm_` becomes `amp.clip_grad_norm_`.

## Why
Each process has a part of every weight, or of every large table. A file written from one of them would hold that part
alone, and a state asked for by one process alone would wait for the others for ever. The norm is a plain number then,
that of the whole model.

## Before
    torch.save(model.state_dict(), "model.pt")

## After
    amp.on_main(torch.save)(amp.full_state_dict(model), "model.pt")

## When it declines
A state that is saved and used for something else as well, one of which single tensors are asked, and one that a
process asks for alone: AMP295, of tables AMP298. What is kept in memory and loaded again stays as it is: shards go back
where they were.

## Leaving it out
No: a checkpoint would hold a part of the model.

## Source
https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html; https://pytorch.org/tutorials/intermediate/FSDP_tutorial.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.plan.shards.blocks import notes_of_blocks

RULE = Rule("AMP219", "whole-state", "What is saved of a sharded model is put together first.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each state that is saved, and for each norm."""
    sharding = context.processes.sharding or context.processes.table_sharding
    if sharding is None:
        return
    for site in sharding.states:
        assert isinstance(site.node, ast.Call)
        message = f"`{site.module.text(site.node)}` of whole tensors; all processes give their parts"
        written = context.vocabulary.whole_state(site.module, site.node)
        yield Change.written(RULE, site.module, site.node, message, written)
    for site in sharding.clips:
        assert isinstance(site.node, ast.Call)
        message = f"`{site.module.text(site.node.func)}` clips by the norm over all processes"
        written = context.vocabulary.clipped_by_norm(site.module, site.node)
        yield Change.written(RULE, site.module, site.node, message, written)


def notes(context: Context) -> Iterator[Note]:
    """Yield which blocks of the models are whole one at a time."""
    if context.processes.sharding is not None:
        yield from notes_of_blocks(context.program, context.precision)
