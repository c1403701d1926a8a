"""Shard the rows of large embedding tables over the processes.

## What it does
With `--shard-embeddings ROWS`, a line `amp.shard_embedding(model, min_rows=ROWS)` goes below the model and above its
optimizer and `amp.prepare_model`. Tables with fewer rows, and all other layers, stay whole on each process. What is
saved becomes `amp.full_state_dict(...)`, and `torch.nn.utils.clip_grad_norm_` becomes `amp.clip_grad_norm_` (AMP219).

## Why
A table of users, items or words can be larger than the rest of the model, and a batch uses few of its rows. Each
process keeps and trains a part of the rows, and gets the rows that its batch needs from the other processes.

## Before
    model = WideAndDeep()
    optimizer = torch.optim.Adam(model.parameters())

## After
    model = WideAndDeep()
    amp.shard_embedding(model, min_rows=100000)
    optimizer = amp.optim.Adam(model.parameters())
    model = amp.prepare_model(model)

## When it declines
Where a table's weight is read, written or shared after the optimizer is built, where only one process looks up rows, or
a number of times that depends on its own batch, and where an optimizer uses a norm of the whole table: AMP298.

## Leaving it out
No: what is saved and clipped is written for tables in parts. Leave out `--shard-embeddings`.

## Source
https://pytorch.org/docs/stable/generated/torch.nn.EmbeddingBag.html
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.text.vocabulary import ModelPlace

RULE = Rule("AMP222", "shard-embedding", "The rows of large tables are sharded over the processes.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield a line for each model that may have a large table."""
    sharding = context.processes.table_sharding
    if sharding is None:
        return
    for home in sharding.places:
        place = ModelPlace(home.module, home.statement, home.variable, is_optional=home.is_optional, before=home.before)
        message = f"the tables of `{home.variable}` with {sharding.tables.min_rows} rows or more are sharded"
        written = context.vocabulary.tables_shared_out(place, sharding.tables.min_rows)
        yield Change.written(RULE, home.module, home.statement, message, written)


def notes(context: Context) -> Iterator[Note]:
    """Yield what becomes of each table."""
    tables, sharding = context.processes.tables, context.processes.table_sharding
    if tables is not None:
        yield from tables.notes(sharding.shared if sharding is not None else set())
