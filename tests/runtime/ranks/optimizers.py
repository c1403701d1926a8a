"""Optimizers whose parameters are sharded over the ranks, as FSDP2 shards them."""

from __future__ import annotations

from typing import Any

import amp_runtime as amp
import torch
from amp_runtime._core.versions import STEPS_ON_SHARDS
from support import assert_equal_on_ranks, run_checks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed.tensor import Shard, distribute_tensor
except ImportError:  # torch 2.4 has them, but not yet under their public name
    from torch.distributed._tensor import Shard, distribute_tensor

MAKERS: dict[str, Any] = {
    "LAMB": lambda p: amp.optim.LAMB(p, lr=0.1, max_grad_norm=1.0),
    "LAMB tensor by tensor": lambda p: amp.optim.LAMB(p, lr=0.1, foreach=False, adam_w_mode=False),
    "NovoGrad": lambda p: amp.optim.NovoGrad(p, lr=0.1, weight_decay=0.1),
    "LARS": lambda p: amp.optim.LARS(p, lr=0.1, weight_decay=0.1, trust_coefficient=0.1),
    "LARC": lambda p: amp.optim.LARC(torch.optim.SGD(p, lr=0.1, weight_decay=0.1), clip=False),
    "FusedAdam": lambda p: amp.optim.FusedAdam(p, lr=0.1, weight_decay=0.1),
    "FusedSGD": lambda p: amp.optim.FusedSGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "FusedAdagrad": lambda p: amp.optim.FusedAdagrad(p, lr=0.1),
    "FusedLAMB": lambda p: amp.optim.FusedLAMB(p, lr=0.1),
    "FusedNovoGrad": lambda p: amp.optim.FusedNovoGrad(p, lr=0.1, bias_correction=False),
}
SHAPES = [(5, 3), (4,)]


def check_norms_and_steps_of_shards_are_those_of_whole_tensors() -> None:
    if not STEPS_ON_SHARDS:  # torch lacks operations on sharded tensors
        return
    mesh = init_device_mesh("cpu", (amp.world_size(),))
    generator = torch.Generator().manual_seed(0)
    values, *gradients = [[torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(4)]

    def sharded(value: torch.Tensor) -> torch.Tensor:
        return distribute_tensor(value.clone(), mesh, [Shard(0)])

    for name, make in MAKERS.items():
        whole = [nn.Parameter(value.clone()) for value in values]
        parts = [nn.Parameter(sharded(value)) for value in values]
        reference, optimizer = make(whole), make(parts)
        for row in gradients:
            for one, part, gradient in zip(whole, parts, row, strict=True):
                one.grad, part.grad = gradient.clone(), sharded(gradient)
            reference.step()
            optimizer.step()
        for one, part in zip(whole, parts, strict=True):
            torch.testing.assert_close(
                part.detach().full_tensor(), one.detach(), msg=lambda text, n=name: f"{n}: {text}"
            )


def check_ranks_that_skip_together_stay_equal() -> None:
    """An overflow on one rank, before the average: nobody's LAMB steps, and the state stays equal."""
    amp.init("O1", dtype="fp16", ddp=True, loss_scale=8.0)
    torch.manual_seed(0)
    model = amp.prepare_model(nn.Linear(3, 2))
    optimizer = amp.optim.FusedLAMB(model.parameters(), lr=0.1)
    for number in range(4):
        optimizer.zero_grad()
        with amp.autocast():
            loss = model(torch.full((2, 3), float(amp.rank() + 1))).float().square().sum()
        if number == 2 and amp.rank() == 0:
            loss = loss * float("inf")
        amp.scaler.scale(loss).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
    assert optimizer.param_groups[0]["step"] == 3
    assert_equal_on_ranks(model.parameters())
    assert_equal_on_ranks([state["exp_avg"] for state in optimizer.state.values()])


if __name__ == "__main__":
    run_checks(globals())
