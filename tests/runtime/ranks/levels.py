"""Half models with master weights on two ranks."""

from __future__ import annotations

from typing import Any

import amp_runtime as amp
import torch
import torch.distributed as dist
from support import run_checks
from torch import nn


def make(dtype: str, **options: Any) -> tuple[Any, torch.optim.Optimizer]:
    amp.init("O2", dtype=dtype, loss_scale=64, ddp=True)  # type: ignore[arg-type]
    torch.manual_seed(0)
    model = amp.prepare_model(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), **options)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batch(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * amp.world_size() + amp.rank())
    return torch.randn(6, 4, generator=generator)


def equal_on_ranks(model: nn.Module) -> None:
    for value in model.state_dict().values():
        other = value.clone()
        dist.broadcast(other, 0)
        assert torch.equal(other, value)


def backward(model: Any, seed: int) -> None:
    with amp.autocast():
        loss = model(batch(seed)).square().mean()
    amp.scaler.scale(loss).backward()


def check_clipped_gradients_are_those_of_the_mean() -> None:
    for dtype in ("fp16", "bf16"):
        for delay in (False, True):
            for to_none in (True, False):
                model, optimizer = make(dtype, delay_allreduce=delay)
                for seed in range(3):
                    optimizer.zero_grad(set_to_none=to_none)
                    backward(model, seed)
                    amp.scaler.unscale_(optimizer)
                    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    assert all(p.grad.dtype is torch.float32 for p in model.parameters())
                    both = norm.detach().clone()
                    dist.broadcast(both, 0)
                    assert torch.equal(both, norm) and norm > 0.1
                    amp.scaler.step(optimizer)
                    amp.scaler.update()
                equal_on_ranks(amp.unwrap(model))
                assert model.state_dict()["0.weight"].dtype is torch.float32


def check_gradients_kept_over_a_step_are_reduced_again() -> None:
    for delay in (False, True):
        model, optimizer = make("bf16", delay_allreduce=delay)
        for seed in range(3):
            backward(model, seed)
            amp.scaler.unscale_(optimizer)
            amp.scaler.step(optimizer)
        equal_on_ranks(amp.unwrap(model))


def check_gradients_unscaled_and_then_accumulated_are_reduced_again() -> None:
    for delay in (False, True):
        model, optimizer = make("fp16", delay_allreduce=delay)
        for seed in range(3):
            backward(model, seed)
            amp.scaler.unscale_(optimizer)
        amp.scaler.step(optimizer)
        equal_on_ranks(amp.unwrap(model))


def check_a_checkpoint_loaded_on_all_ranks_is_exact() -> None:
    model, optimizer = make("bf16")
    state = {key: torch.full_like(value, 1 / 3) for key, value in model.state_dict().items()}
    model.load_state_dict(state)
    optimizer.load_state_dict(optimizer.state_dict())
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    backward(model, 0)
    amp.scaler.step(optimizer)
    equal_on_ranks(amp.unwrap(model))


def check_inference_takes_the_wrapper() -> None:
    model, _ = make("bf16")
    deployed = amp.inference(model, check_inputs=batch(0))
    assert type(deployed) is nn.Sequential and deployed[0].weight.dtype is torch.bfloat16


if __name__ == "__main__":
    run_checks(globals())
