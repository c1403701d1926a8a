"""A half model that the script itself wraps in torch's DistributedDataParallel, in a process group of its own."""

from __future__ import annotations

from typing import Any

import amp_runtime as amp
import torch
import torch.distributed as dist
from support import assert_equal_on_ranks, run_checks
from torch import nn


def made(dtype: str) -> tuple[nn.Module, int]:
    """The prepared model, and its rank: other weights on every rank, as an unseeded script has them."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    amp.init("O2", dtype=dtype, loss_scale=64)  # type: ignore[arg-type]
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model.register_buffer("table", torch.rand(8))
    model.register_parameter("unused", nn.Parameter(torch.rand(3)))
    return amp.prepare_model(model), dist.get_rank()


def trained(model: nn.Module, rank: int, **options: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True, **options)
    for seed in range(3):
        generator = torch.Generator().manual_seed(10 * seed + rank)
        optimizer.zero_grad()
        with amp.autocast():
            loss = wrapped(torch.randn(6, 4, generator=generator)).square().mean()
        amp.scaler.scale(loss).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()


def check_every_rank_has_the_masters_of_rank_0() -> None:
    amp.shutdown()
    for dtype in ("fp16", "bf16"):
        model, rank = made(dtype)
        first = {key: value.clone() for key, value in model.state_dict().items()}
        nn.parallel.DistributedDataParallel(model)
        state = model.state_dict()
        assert_equal_on_ranks(state.values())
        assert rank or all(torch.equal(state[key], value) for key, value in first.items())
        assert not torch.equal(state["table"], state["table"].half().float())
        trained(model, rank)
        values = [value for key, value in model.state_dict().items() if "running" not in key]
        assert_equal_on_ranks(values)
        amp.shutdown()


def check_what_the_wrapper_leaves_out_stays_each_rank_s_own() -> None:
    model, _ = made("fp16")
    own = model.state_dict()["0.weight"].clone()
    model._ddp_params_and_buffers_to_ignore = ["0.weight"]
    nn.parallel.DistributedDataParallel(model)
    assert torch.equal(model.state_dict()["0.weight"], own)
    assert_equal_on_ranks([model.state_dict()["2.weight"]])
    amp.shutdown()


def check_a_group_of_one_rank_changes_nothing() -> None:
    model, rank = made("fp16")
    first = {key: value.clone() for key, value in model.state_dict().items()}
    groups = [dist.new_group([number]) for number in range(dist.get_world_size())]
    nn.parallel.DistributedDataParallel(model, process_group=groups[rank])
    assert all(torch.equal(value, first[key]) for key, value in model.state_dict().items())
    amp.shutdown()


if __name__ == "__main__":
    run_checks(globals())
