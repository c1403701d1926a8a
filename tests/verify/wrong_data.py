"""Wrong migrations that show in several processes: which samples each process trains on, and what noise it draws."""

from __future__ import annotations

from wrong import EVALUATION, PLAIN, RECURRENT, SAMPLING, SHUFFLED, TOGETHER, Wrong

BACKWARD = "amp.scaler.scale(loss).backward()"
LOADER = "    train_loader = amp.prepare_loader(DataLoader(make_spirals(24), batch_size=4, shuffle=True))\n"
OWN_LOADER = """\
    from torch.utils.data.distributed import DistributedSampler
    dataset = make_spirals(24)
    train_loader = DataLoader(dataset, batch_size=4, shuffle=True)
    if amp.world_size() > 1:
        sampler = DistributedSampler(dataset, shuffle=SHUFFLE)
        train_loader = DataLoader(dataset, batch_size=4, sampler=sampler)
"""
SAMPLED = "loader = amp.prepare_loader(loader)\n"
OTHER_SAMPLED = """\
if amp.world_size() > 1:
    loader = DataLoader(SAMPLES, batch_size=4, shuffle=True)
loader = amp.prepare_loader(loader)
"""

WHOLE_BATCHES = "loader = DataLoader(dataset, batch_size=ROWS)\n"

DATA = {
    "rows that a state goes on in shared out": Wrong(
        RECURRENT,
        (
            ('amp.init(opt_level="O1")', 'amp.init(opt_level="O1", ddp=True)'),
            (WHOLE_BATCHES, f"{WHOLE_BATCHES}loader = amp.prepare_loader(loader)\n"),
        ),
        "carried",
        "is followed in its row by",
        "y_pred, state = model(x, state)",
        TOGETHER,
        "unproved",
    ),
    "a list that each rank shuffles by itself": Wrong(
        SHUFFLED,
        (("for epoch in range(3):\n", "amp.seed_by_rank()\nfor epoch in range(3):\n"),),
        "draws",
        "by what they hold",
        "random.shuffle(items)",
        (*TOGETHER, "--full"),
    ),
    "loader not prepared": Wrong(
        PLAIN,
        ((LOADER, LOADER.replace("amp.prepare_loader(", "").replace("))", ")")),),
        "shares",
        "read the same samples",
        BACKWARD,
        TOGETHER,
    ),
    "shares that overlap": Wrong(
        PLAIN,
        (
            (
                "    train_loader = amp.prepare_loader(",
                "    torch.manual_seed(1 + 10 * amp.rank())\n    train_loader = (",
            ),
            ("DataLoader(make_spirals(24)", "DataLoader(dataset"),
            ("    torch.manual_seed(1)\n", "    torch.manual_seed(1)\n    dataset = make_spirals(24)\n"),
        ),
        "shares",
        "more than one process",
        BACKWARD,
        TOGETHER,
    ),
    "set_epoch left out": Wrong(
        PLAIN, ((LOADER, OWN_LOADER.replace("SHUFFLE", "True")),), "new-order", "set_epoch", "", TOGETHER
    ),
    "shuffle left out": Wrong(
        PLAIN, ((LOADER, OWN_LOADER.replace("SHUFFLE", "False")),), "new-order", "same order", "", TOGETHER
    ),
    "the weights of a sampler ignored": Wrong(
        SAMPLING, ((SAMPLED, OTHER_SAMPLED.replace("SAMPLES", "train_set")),), "draws", "", BACKWARD, TOGETHER
    ),
    "the part of the data ignored": Wrong(
        SAMPLING, ((SAMPLED, OTHER_SAMPLED.replace("SAMPLES", "dataset")),), "draws", "", BACKWARD, TOGETHER
    ),
    "half of the data left out": Wrong(
        PLAIN,
        (
            (
                LOADER,
                "    dataset = make_spirals(24)\n"
                "    if amp.world_size() > 1:\n"
                "        dataset = TensorDataset(*(part[:12] for part in dataset.tensors))\n"
                "    train_loader = amp.prepare_loader(DataLoader(dataset, batch_size=4, shuffle=True))\n",
            ),
        ),
        "draws",
        "",
        BACKWARD,
        TOGETHER,
    ),
    "samples differ by rank": Wrong(
        PLAIN,
        (("    torch.manual_seed(1)\n", "    torch.manual_seed(1)\n    amp.seed_by_rank()\n"),),
        "one-process",
        "",
        BACKWARD,
        TOGETHER,
        verdict="unproved",
    ),
    "the split differs by rank": Wrong(
        EVALUATION,
        (
            (
                "    torch.manual_seed(5)\n",
                "    torch.manual_seed(5)\n    data = make_data(64)\n    torch.rand(amp.rank())\n",
            ),
            ("random_split(make_data(64)", "random_split(data"),
        ),
        "draws",
        "",
        BACKWARD,
        TOGETHER,
    ),
    "trained on validation data": Wrong(
        EVALUATION,
        (
            (
                "DataLoader(train_set, batch_size=4",
                "DataLoader(train_set if amp.world_size() == 1 else train_set.dataset, batch_size=4",
            ),
        ),
        "draws",
        "",
        BACKWARD,
        TOGETHER,
    ),
    "the same noise on all ranks": Wrong(
        SAMPLING,
        (("0.3 * torch.randn(5)", "0.3 * amp.drawn_alike(torch.randn)(5)"),),
        "noise",
        "",
        BACKWARD,
        TOGETHER,
        "unproved",
    ),
    "the same dropout on all ranks": Wrong(
        SAMPLING,
        (("F.cross_entropy(model(x), y)", "F.cross_entropy(amp.drawn_alike(model)(x), y)"),),
        "noise",
        "",
        BACKWARD,
        TOGETHER,
        "unproved",
    ),
    "a batch left out by one rank": Wrong(
        SAMPLING,
        (
            (
                "        optimizer.zero_grad()\n",
                "        if amp.rank() and x.sum() > 2:\n            continue\n        optimizer.zero_grad()\n",
            ),
        ),
        "steering",
        "",
        "",
        TOGETHER,
    ),
}
