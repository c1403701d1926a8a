"""Batch norm sees the samples of all processes, and was made to before the model was wrapped for DDP.

A batch norm that is not synchronised normalises by the few samples of one process, so the model is not the one that
one process with the whole batch trains. Whether that matters is measured: it is disproved where the losses differ by
more than the tolerance from those of the original on the same samples, and not proved where they differ by less.

A model is converted before DDP wraps it: DDP has listed the buffers that it keeps equal by then.

Torch itself synchronises batch norm on GPUs only. In plain PyTorch on a CPU nothing is said of it, and a note says why.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_migrate.verify.checks.band import deviation, own_distance
from amp_migrate.verify.checks.common import (
    Traces,
    first_rank,
    is_distributed_already,
    keeps_its_own,
    percent,
    together,
)
from amp_migrate.verify.checks.pairing import mean_losses, same_samples
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import ORIGINAL, ORIGINAL_MERGED, Asked

ID = "sync-bn"
TITLE = "Batch norm is synchronised over the processes"

_WHAT_TO_DO = "amp.prepare_model synchronises batch norm first and wraps the model then; pass it the model itself"


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Look at what was noticed of batch norm, and how much the losses owe to it."""
    ranks, original = together(traces), first_rank(traces, ORIGINAL)
    if not ranks or original is None:
        return
    events = {event for rank in ranks for event in rank.events}
    if "sync_bn_after_ddp" in events and "sync_bn_after_ddp" not in original.events:
        message = f"Batch norm was converted after the model was wrapped for DDP. {_WHAT_TO_DO}."
        yield Check(ID, TITLE, "disproved", message)
        return
    if "batch_norm" not in events:
        if "sync_bn" in events and "batch_norm" in original.events:
            yield Check(ID, TITLE, "proved", "Batch norm computes its statistics over all processes.")
        return
    if is_distributed_already(traces) or keeps_its_own(traces, asked):
        return  # a script with a distribution of its own keeps its own batch norm
    if lacks_sync_bn(traces, asked):
        return
    alone = "Batch norm is not synchronised: each process normalises by its own samples."
    merged = first_rank(traces, ORIGINAL_MERGED)
    steps = same_samples(ranks, merged) if merged is not None else 0
    found = deviation(merged.backwards[:steps], mean_losses(ranks)[:steps]) if merged is not None and steps else None
    if found is None or own_distance(traces) > asked.tolerance:
        message = f"{alone} What one process gives on the same samples is not known. {_WHAT_TO_DO}."
        yield Check(ID, TITLE, "unproved", message)
        return
    apart = f"On the same samples the losses differ by up to {percent(found.size)} from those of one process"
    if found.size > asked.tolerance and asked.sync_bn:
        message = f"{alone} {apart}, at step {found.farthest.step}. {_WHAT_TO_DO}."
        yield Check(ID, TITLE, "disproved", message)
    else:
        why = "which is not much" if asked.sync_bn else "as was asked for"
        yield Check(ID, TITLE, "unproved", f"{alone} {apart}, {why}. {_WHAT_TO_DO}.")


def lacks_sync_bn(traces: Traces, asked: Asked) -> bool:
    """Whether the processes are without synchronised batch norm because torch has none for their device."""
    ranks = together(traces)
    return (
        asked.target == "torch"
        and not keeps_its_own(traces, asked)
        and any("batch_norm" in rank.events and rank.device == "cpu" for rank in ranks)
    )
