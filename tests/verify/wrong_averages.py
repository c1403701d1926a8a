"""Wrong migrations that show in several processes: gradients, weights and buffers that are to be alike."""

from __future__ import annotations

from wrong import ACCUMULATION, ALIKE, AVERAGING, PLAIN, SAMPLING, TOGETHER, Wrong

BACKWARD = "amp.scaler.scale(loss).backward()"

AVERAGED = {
    "model not prepared": Wrong(
        PLAIN,
        (("amp.prepare_model(Net())", "Net()"),),
        "runs",
        "amp.prepare_model",
        "amp.scaler.step(optimizer)",
        TOGETHER,
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
        verdict="unproved",
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
        verdict="unproved",
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
                "            update_average()\n            amp.unwrap(model)[1].running_mean.add_(0.1 * amp.rank())\n",
            ),
        ),
        "buffers",
        "running_mean",
        "",
        (*TOGETHER, "--full"),
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
        (*TOGETHER, "--full"),
    ),
}
