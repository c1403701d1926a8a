"""Wrong migrations that show in several processes: scripts with a distribution of their own."""

from __future__ import annotations

from wrong import DISTRIBUTED, LAUNCHED, TOGETHER, Wrong

BACKWARD = "amp.scaler.scale(loss).backward()"

OWN_DDP = {
    "loss averaged twice in a script's own DDP": Wrong(
        DISTRIBUTED,
        (("loss = criterion(model(x), y)", "loss = criterion(model(x), y) / dist.get_world_size()"),),
        "together-exact",
        "the loss of step 1",
        BACKWARD,
        TOGETHER,
    ),
    "own DDP left out": Wrong(
        DISTRIBUTED,
        (("DDP(amp.prepare_model(nn.Sequential(", "(amp.prepare_model(nn.Sequential("),),
        "together-exact",
        "norm",
        BACKWARD,
        TOGETHER,
    ),
    "own sampler without set_epoch": Wrong(
        DISTRIBUTED,
        (("        sampler.set_epoch(epoch)\n", ""),),
        "together-exact",
        "the loss of step",
        BACKWARD,
        TOGETHER,
    ),
    "own sampler left out": Wrong(
        DISTRIBUTED,
        (("batch_size=4, sampler=sampler", "batch_size=4, shuffle=True"),),
        "together-exact",
        "the loss of step",
        BACKWARD,
        TOGETHER,
    ),
    "no_sync in the steps that average": Wrong(
        LAUNCHED,
        (("nullcontext() if together else", "nullcontext() if not together else"),),
        "together-exact",
        "norm",
        BACKWARD,
        TOGETHER,
    ),
    "no_sync always": Wrong(
        LAUNCHED,
        (("contextlib.nullcontext() if together else model", "model"),),
        "together-exact",
        "norm",
        BACKWARD,
        TOGETHER,
    ),
    "own wrapper left out of the forward pass": Wrong(
        LAUNCHED,
        (("F.mse_loss(model(inputs), targets)", "F.mse_loss(model.module(inputs), targets)"),),
        "together-exact",
        "norm",
        BACKWARD,
        TOGETHER,
    ),
    "own sum over the processes left out": Wrong(
        LAUNCHED,
        (("    dist.all_reduce(sums)\n", ""),),
        "together-printed",
        "validation",
        "",
        (*TOGETHER, "--full"),
        verdict="unproved",
    ),
    "own sum behind a guard": Wrong(
        LAUNCHED,
        (("    dist.all_reduce(sums)\n", "    if dist.get_rank() == 0:\n        dist.all_reduce(sums)\n"),),
        "runs",
        "",
        "",
        (*TOGETHER, "--full"),
    ),
    "own barrier behind a guard": Wrong(
        LAUNCHED,
        (("        dist.barrier()\n", "        if dist.get_rank() == 0:\n            dist.barrier()\n"),),
        "runs",
        "",
        "",
        (*TOGETHER, "--full"),
    ),
}
