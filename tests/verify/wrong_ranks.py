"""Wrong migrations that show in several processes: what has to be shared, averaged or alike."""

from __future__ import annotations

from wrong import ACCUMULATION, ALIKE, AVERAGING, DISTRIBUTED, EVALUATION, HANGS, LAUNCHED, PLAIN, SAMPLING, TOGETHER, Wrong

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
OWN_SAMPLED = """\
if amp.world_size() > 1:
    from torch.utils.data.distributed import DistributedSampler
    loader = DataLoader(SAMPLES, batch_size=4, sampler=DistributedSampler(SAMPLES, drop_last=True))
"""
VALIDATION = "    val_loader = DataLoader(val_set, batch_size=4)\n"
SHARED_VALIDATION = "    val_loader = amp.prepare_loader(DataLoader(val_set, batch_size=4))\n"
SUMS = """\
    total = amp.reduce_sum(total)
    correct = amp.reduce_sum(correct)
"""
EVALUATED = """\
        correct += (output.argmax(1) == y).sum().item()
    return total / len(loader.dataset), correct / len(loader.dataset)


def main():
"""
STEPPED = """\
            amp.scaler.step(optimizer)
            amp.scaler.update()
"""

DATA = {
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
        SAMPLING, ((SAMPLED, OWN_SAMPLED.replace("SAMPLES", "train_set")),), "draws", "", BACKWARD, TOGETHER
    ),
    "the part of the data ignored": Wrong(
        SAMPLING, ((SAMPLED, OWN_SAMPLED.replace("SAMPLES", "dataset")),), "draws", "", BACKWARD, TOGETHER
    ),
    "half of the data left out": Wrong(
        PLAIN,
        (
            (
                LOADER,
                "    dataset = make_spirals(24)\n"
                "    dataset = dataset if amp.world_size() == 1 else TensorDataset(*(part[:12] for part in dataset.tensors))\n"
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
    ),
    "the split differs by rank": Wrong(
        EVALUATION,
        (
            ("    torch.manual_seed(5)\n", "    torch.manual_seed(5)\n    data = make_data(64)\n    torch.rand(amp.rank())\n"),
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
    ),
    "the same dropout on all ranks": Wrong(
        SAMPLING,
        (("F.cross_entropy(model(x), y)", "F.cross_entropy(amp.drawn_alike(model)(x), y)"),),
        "noise",
        "",
        BACKWARD,
        TOGETHER,
    ),
    "a batch left out by one rank": Wrong(
        SAMPLING,
        (("        optimizer.zero_grad()\n", "        if amp.rank() and x.sum() > 2:\n            continue\n        optimizer.zero_grad()\n"),),
        "runs",
        "",
        BACKWARD,
        HANGS,
    ),
}

AVERAGED = {
    "model not prepared": Wrong(
        PLAIN, (("amp.prepare_model(Net())", "Net()"),), "runs", "amp.prepare_model", "amp.scaler.step(optimizer)", TOGETHER
    ),
    "model not prepared, stepped without the scaler": Wrong(
        PLAIN,
        (
            ("amp.prepare_model(Net())", "Net()"),
            ("amp.scaler.step(optimizer)", "optimizer.step()"),
            ("            amp.scaler.unscale_(optimizer)\n", ""),
        ),
        "ranks-agree",
        "not averaged",
        BACKWARD,
        TOGETHER,
    ),
    "weights changed on one rank": Wrong(
        PLAIN,
        (
            (
                "    model = amp.prepare_model(Net())\n",
                "    model = amp.prepare_model(Net())\n"
                "    if amp.rank() == 1:\n"
                "        torch.nn.init.zeros_(amp.unwrap(model).second.bias)\n",
            ),
        ),
        "ranks-agree",
        "differ",
        "",
        TOGETHER,
    ),
    "DDP where a part has no gradient": Wrong(
        ALIKE,
        (("amp.prepare_model(Heads(), delay_allreduce=True)", "amp.prepare_model(Heads())"),),
        "runs",
        "reduction",
        "loss = F.cross_entropy(model(x, head), y)",
        TOGETHER,
    ),
    "loss averaged twice": Wrong(
        ACCUMULATION,
        (("amp.scaler.scale(loss)", "amp.scaler.scale(loss / amp.world_size())"),),
        "one-process",
        "divided by the number of processes",
        "amp.scaler.scale(loss / amp.world_size()).backward()",
        TOGETHER,
    ),
    "gradients summed over the processes": Wrong(
        ACCUMULATION,
        (
            (
                "            amp.scaler.step(optimizer)\n",
                "            for parameter in model.parameters():\n"
                "                parameter.grad *= amp.world_size()\n"
                "            amp.scaler.step(optimizer)\n",
            ),
        ),
        "one-process",
        "summed over the processes",
        "",
        TOGETHER,
    ),
    "accumulation times the number of processes": Wrong(
        ACCUMULATION,
        (("(i + 1) % steps_per_update == 0", "(i + 1) % (steps_per_update * amp.world_size()) == 0"),),
        "one-process",
        "step",
        "",
        TOGETHER,
    ),
    "learning rate times the number of processes": Wrong(
        PLAIN, (("lr=0.5", "lr=0.5 * amp.world_size()"),), "one-process", "The learning rate is 1,", BACKWARD, TOGETHER
    ),
    "a schedule that is not shared out": Wrong(
        SAMPLING,
        (("total_steps=epochs * len(loader)", "total_steps=epochs * len(weights) // 4"),),
        "rates",
        "learning rate",
        "",
        TOGETHER,
    ),
    "batch norm not synchronised": Wrong(
        PLAIN,
        (("amp.prepare_model(Net())", "amp.prepare_model(Net(), sync_bn=False)"),),
        "sync-bn",
        "not synchronised",
        "",
        TOGETHER,
    ),
    "batch norm synchronised after DDP": Wrong(
        PLAIN,
        (
            (
                "amp.prepare_model(Net())",
                "amp.convert_sync_batchnorm(amp.prepare_model(Net(), sync_bn=False))",
            ),
        ),
        "sync-bn",
        "after the model was wrapped",
        "",
        TOGETHER,
    ),
    "buffers of one rank": Wrong(
        AVERAGING,
        (
            (
                "            update_average()\n",
                "            update_average()\n"
                "            amp.unwrap(model)[1].running_mean.add_(0.1 * amp.rank())\n",
            ),
        ),
        "buffers",
        "running_mean",
        "",
        (*TOGETHER, "--steps", "50"),
    ),
    "an average of the weights of each rank": Wrong(
        AVERAGING,
        (
            (
                "            update_average()\n",
                "            update_average(0.8 - 0.1 * amp.rank())\n",
            ),
        ),
        "buffers",
        "",
        "",
        (*TOGETHER, "--steps", "50"),
    ),
}

DECISIONS = {
    "a validation share that is not summed": Wrong(
        EVALUATION, ((VALIDATION, SHARED_VALIDATION),), "printed", "val", "", (*TOGETHER, "--steps", "200")
    ),
    "early stopping and schedule by a rank's own loss": Wrong(
        EVALUATION,
        (
            (VALIDATION, SHARED_VALIDATION),
            (EVALUATED, EVALUATED.replace("len(loader.dataset)", "(len(loader) * 4)")),
        ),
        "steering",
        "",
        "scheduler.step(val_loss)",
        (*HANGS, "--steps", "200"),
    ),
    "a schedule that one rank steps": Wrong(
        EVALUATION,
        (
            (
                "        scheduler.step(val_loss)\n",
                "        if amp.is_main_process():\n            scheduler.step(val_loss)\n",
            ),
        ),
        "ranks-agree",
        "",
        "",
        (*TOGETHER, "--steps", "200"),
    ),
    "early stopping on one rank": Wrong(
        EVALUATION,
        (("            if bad >= 2:\n", "            if bad >= 2 and amp.is_main_process():\n"),),
        "runs",
        "",
        "",
        (*HANGS, "--steps", "200"),
    ),
    "a collective behind a guard": Wrong(
        EVALUATION,
        ((SUMS, f"    if amp.is_main_process():\n        {SUMS.strip()}\n".replace("\n    correct", "\n        correct")),),
        "runs",
        "",
        "",
        (*HANGS, "--steps", "200"),
    ),
    "a barrier on one rank": Wrong(
        EVALUATION,
        (("    amp.barrier()\n", "    if amp.is_main_process():\n        amp.barrier()\n        amp.barrier()\n"),),
        "runs",
        "",
        "",
        (*HANGS, "--steps", "200"),
    ),
    "steps left out by a rank's own loss": Wrong(
        ALIKE,
        (("if amp.reduce_mean(loss.item()) > 1.9:", "if loss.item() > 1.9:"),),
        "steering",
        "",
        "if loss.item() > 1.9:",
        (*HANGS, "--steps", "50"),
    ),
    "a choice drawn by each rank": Wrong(
        ALIKE,
        (("amp.drawn_alike(random.choice)([0, 1])", "random.choice([0, 1])"),),
        "steering",
        "",
        "head = random.choice([0, 1])",
        (*HANGS, "--steps", "50"),
    ),
    "noise on weights drawn by each rank": Wrong(
        ALIKE,
        (
            (
                "    perturb(model)\n",
                "    amp.seed_by_rank()\n    perturb(model)\n    amp.seed_alike()\n",
            ),
        ),
        "ranks-agree",
        "differ",
        "",
        (*TOGETHER, "--steps", "50"),
    ),
    "labels in the order of a set": Wrong(
        ALIKE,
        (("enumerate(amp.same_order(set(names)))", "enumerate(set(names))"),),
        "one-process",
        "",
        "",
        TOGETHER,
    ),
    "resumed on one rank": Wrong(
        AVERAGING,
        (
            ('    if os.path.exists("last.pt"):\n', '    if os.path.exists("last.pt") and amp.is_main_process():\n'),
        ),
        "runs",
        "",
        "",
        (*HANGS, "--steps", "50"),
    ),
    "an optimizer's state resumed on one rank": Wrong(
        AVERAGING,
        (
            (
                '        optimizer.load_state_dict(state["optimizer"])\n',
                "        optimizer.state.clear()\n"
                "        if amp.is_main_process():\n"
                '            optimizer.load_state_dict(state["optimizer"])\n',
            ),
        ),
        "ranks-agree",
        "differ",
        "",
        (*TOGETHER, "--steps", "50"),
    ),
}

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
        DISTRIBUTED, (("        sampler.set_epoch(epoch)\n", ""),), "together-exact", "the loss of step", BACKWARD, TOGETHER
    ),
    "own sampler left out": Wrong(
        DISTRIBUTED,
        (
            ("batch_size=4, sampler=sampler", "batch_size=4, shuffle=True"),
        ),
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
        LAUNCHED, (("contextlib.nullcontext() if together else model", "model"),), "together-exact", "norm", BACKWARD, TOGETHER
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
        LAUNCHED, (("    dist.all_reduce(sums)\n", ""),), "printed", "validation", "", (*TOGETHER, "--steps", "50")
    ),
    "own sum behind a guard": Wrong(
        LAUNCHED,
        (("    dist.all_reduce(sums)\n", "    if dist.get_rank() == 0:\n        dist.all_reduce(sums)\n"),),
        "runs",
        "",
        "",
        (*HANGS, "--steps", "50"),
    ),
    "own barrier behind a guard": Wrong(
        LAUNCHED,
        (("        dist.barrier()\n", "        if dist.get_rank() == 0:\n            dist.barrier()\n"),),
        "runs",
        "",
        "",
        (*HANGS, "--steps", "50"),
    ),
}
