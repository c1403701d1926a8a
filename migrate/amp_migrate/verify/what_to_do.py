"""What checks advise, in the words of what the migrated version is made of.

Checks speak of the runtime. A version without it gets torch's own words in their places.
"""

from __future__ import annotations

from dataclasses import replace

from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import Asked

IN_TORCH = {
    # Longer ones first: some are parts of others.
    "Give amp.prepare_loader the loader that the original trains with, with its sampler and its split.": (
        "Make the DistributedSampler of the dataset that the original trains with, split as there."
    ),
    "Loop over amp.prepare_loader(loader), or call amp.seed_by_rank() before the loop: then each draws its own.": (
        "Seed each rank with its own number once the model is made: then each draws its own."
    ),
    "amp.prepare_model synchronises batch norm first and wraps the model then; pass it the model itself": (
        "Call SyncBatchNorm.convert_sync_batchnorm on the model itself, before DistributedDataParallel wraps it"
    ),
    "amp.prepare_loader splits any iterable of batches.": "a DistributedSampler splits a dataset.",
    "Pass the loader through amp.prepare_loader.": "Give the loader a DistributedSampler.",
    "amp.prepare_loader does.": "a DistributedSampler does.",
    ", or use amp.prepare_loader, which does it.": ".",
    "prepare the module with amp.prepare_model.": "wrap the module in DistributedDataParallel, or average it yourself.",
    "amp.prepare_model": "DistributedDataParallel",
    "is drawn once for all, by amp.drawn_alike.": "is drawn once for all, from one seed.",
    "is drawn once for all by amp.drawn_alike.": "is drawn once for all, from one seed.",
    "by amp.reduce_mean": "by dist.all_reduce",
    "by amp.world_size()": "by the number of processes",
    ", or in one that amp.same_order gives.": ".",
    "amp.scaler": "scaler",
}
"""By what stands in messages about the runtime, what stands there about torch."""


def in_target(check: Check, asked: Asked) -> Check:
    """A check in the words of the version that it is about."""
    if not asked.native:
        return check
    message = check.message
    for ours, torchs in IN_TORCH.items():
        message = message.replace(ours, torchs)
    return replace(check, message=message)
