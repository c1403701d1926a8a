"""Edits of right migrations that leave them right: none may be called wrong."""

from __future__ import annotations

from wrong import ACCUMULATION, GAN, PLAIN, RECURRENT, SHUFFLED

LOADER = "    train_loader = amp.prepare_loader(DataLoader(make_spirals(24), batch_size=4, shuffle=True))\n"
OWN_LOADER = """\
    from torch.utils.data.distributed import DistributedSampler
    dataset = make_spirals(24)
    sampler = None
    train_loader = DataLoader(dataset, batch_size=4, shuffle=True)
    if amp.world_size() > 1:
        sampler = DistributedSampler(dataset)
        train_loader = DataLoader(dataset, batch_size=4, sampler=sampler)
"""
STEP_C = "        amp.scaler.step(optimizer_c)\n"

HARMLESS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    # The runtime's scaler does nothing in an update without a step.
    "update() twice": (PLAIN, (("            amp.scaler.update()\n", "            amp.scaler.update()\n" * 2),)),
    "update() after each of two optimizers": (GAN, ((STEP_C, f"{STEP_C}        amp.scaler.update()\n"),)),
    # It averages at the step what DDP has not averaged.
    "a forward pass that goes by the wrapper": (
        PLAIN,
        (("F.cross_entropy(model(x), y)", "F.cross_entropy(amp.unwrap(model)(x), y)"),),
    ),
    "the mean of a rank's loss shown": (
        PLAIN,
        (("loss {loss.item():.4f}", "loss {amp.reduce_mean(loss.item()):.4f}"),),
    ),
    "a fused optimizer": (PLAIN, (("amp.optim.SGD(", "torch.optim.SGD("),)),
    "gradients unscaled where nothing looks at them": (
        ACCUMULATION,
        (
            (
                "            amp.scaler.step(optimizer)\n",
                "            amp.scaler.unscale_(optimizer)\n            amp.scaler.step(optimizer)\n",
            ),
        ),
    ),
    "gradients cleared at another place": (
        PLAIN,
        (
            ("            optimizer.zero_grad()\n", ""),
            (
                "            amp.scaler.update()\n",
                "            amp.scaler.update()\n            optimizer.zero_grad(set_to_none=True)\n",
            ),
        ),
    ),
    "a sampler of one's own": (
        PLAIN,
        (
            (LOADER, OWN_LOADER),
            (
                "        model.train()\n",
                "        model.train()\n        if sampler is not None:\n            sampler.set_epoch(epoch)\n",
            ),
        ),
    ),
    # Each rank has half of the rows of each batch, and these go on where they ended.
    "whole rows for a state that goes on": (
        RECURRENT,
        (
            ('amp.init(opt_level="O1")', 'amp.init(opt_level="O1", ddp=True)'),
            (
                "loader = DataLoader(dataset, batch_size=ROWS)\n",
                "share = ROWS // amp.world_size()\n"
                "first = amp.rank() * share\n"
                "rows = range(first, first + share)\n"
                "batches = [[at + row for row in rows] for at in range(0, len(dataset), ROWS)]\n"
                "loader = DataLoader(dataset, batch_sampler=batches)\n",
            ),
        ),
    ),
    "a list that all ranks shuffle alike": (
        SHUFFLED,
        (
            ("        optimizer.zero_grad()\n", ""),
            ("        amp.scaler.update()\n", "        amp.scaler.update()\n        optimizer.zero_grad()\n"),
        ),
    ),
}
