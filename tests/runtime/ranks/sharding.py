"""Models that are sharded by torch's FSDP2, against the same ones that are whole on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import amp_runtime as amp
import torch
from amp_runtime._core.context import context
from amp_runtime._core.dtensors import is_sharded, whole
from amp_runtime._distributed.sharding import engine
from support import gathered, run_checks
from torch import nn

RANKS = (2, 4)
STEPS = 6
ROUNDING = 2e-6
"""The largest difference of two losses near 1 that sums in another order make of float32."""
HALF_ROUNDING = 2e-2
"""The same where operations round to bfloat16, whose epsilon is 0.0078."""


class Block(nn.Module):
    def __init__(self, width: int, norm: str) -> None:
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.norm = nn.BatchNorm1d(2 * width) if norm == "batch" else nn.LayerNorm(2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.norm(self.first(x))))


class Net(nn.Module):
    """Blocks, an odd number of rows, and a buffer that takes part."""

    scale: torch.Tensor

    def __init__(self, norm: str = "layer", width: int = 7) -> None:
        super().__init__()
        self.stem = nn.Linear(5, width)
        self.blocks = nn.ModuleList(Block(width, norm) for _ in range(3))
        self.head = nn.Linear(width, 3)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """It does not blow up what rounding leaves of a gradient that is zero, as Adam does."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def begin(level: str, shard: bool, **options: Any) -> None:
    """As a script begins: the ranks draw the same initial weights."""
    amp.init(level, parallel="fsdp" if shard else "ddp", **{"dtype": "bf16", "sync_bn": True, **options})
    torch.manual_seed(0)


def batch(step: int, rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """What this rank gets in a step; ranks get other rows."""
    generator = torch.Generator().manual_seed(1000 * step + amp.rank())
    return torch.randn(rows, 5, generator=generator), torch.randn(rows, 3, generator=generator)


def train(
    model: Any, optimizer: Any, first: int = 0, steps: int = STEPS, clip: float | None = None, parts: int = 1
) -> list[float]:
    """The mean losses of some steps, of ``parts`` backward passes each."""
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        for part in range(parts):
            x, y = batch(step * parts + part)
            with amp.no_sync(model, enabled=part + 1 < parts), amp.autocast():
                loss = (model(x) - y).square().mean() / parts
                amp.scaler.scale(loss).backward()
        if clip is not None:
            amp.scaler.unscale_(optimizer)
            amp.clip_grad_norm_(model.parameters(), clip)
        amp.scaler.step(optimizer)
        amp.scaler.update()
        losses.append(float(amp.reduce_mean(loss.detach() * parts)))
    return losses


def made(
    level: str, shard: bool, make: Callable[[], nn.Module] = Net, optim: Callable[[Any], Any] = adamw, **options: Any
) -> tuple[Any, Any]:
    begin(level, shard, **options)
    model = amp.prepare_model(make())
    return model, optim(model.parameters())


def both(level: str, tolerance: float, make: Callable[[], nn.Module] = Net, **options: Any) -> None:
    """Losses and weights of a run whose model is whole, and of one whose model is sharded."""
    how = {key: options.pop(key) for key in ("clip", "parts") if key in options}
    model, optimizer = made(level, False, make, sgd, **options)
    expected = train(model, optimizer, **how)
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    model, optimizer = made(level, True, make, sgd, **options)
    found = train(model, optimizer, **how)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert found[-1] < found[0]
    state = {name: whole(value) for name, value in model.state_dict().items()}
    assert list(state) == list(wanted)
    for name, value in wanted.items():
        assert state[name].dtype is value.dtype, name
        torch.testing.assert_close(state[name], value, rtol=10 * tolerance, atol=10 * tolerance)


def raised(kind: type[Exception], run: Callable[[], Any]) -> str:
    """The message of the error, which every rank must get."""
    text = ""
    try:
        run()
    except kind as error:
        text = str(error)
    assert all(gathered(bool(text))), gathered(text)
    return text


def check_each_of_two_machines_has_a_copy() -> None:
    """Four processes of two machines: the weights are shared out over two, and all four are averaged."""
    if amp.world_size() != 4:
        return
    model, optimizer = made("O0", False, optim=sgd)
    expected = train(model, optimizer, clip=0.5)
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    amp.init("O0", parallel="hsdp", sync_bn=True)
    torch.manual_seed(0)
    context.local_rank = amp.rank() % 2
    model = amp.prepare_model(Net())
    optimizer = sgd(model.parameters())
    found = train(model, optimizer, clip=0.5)
    torch.testing.assert_close(found, expected, rtol=ROUNDING, atol=ROUNDING)
    weight = model.stem.weight
    assert tuple(weight.device_mesh.mesh.shape) == (2, 2) and len(weight.to_local()) in (3, 4)
    state = amp.full_state_dict(model)
    if amp.is_main_process():
        for name, value in wanted.items():
            torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-5)
    model.load_state_dict(wanted)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(whole(value), wanted[name])
    context.local_rank = amp.rank() % 3
    assert "as many processes on each machine" in raised(RuntimeError, lambda: amp.prepare_model(Net(width=6)))
    context.local_rank = amp.rank()


def check_parameters_are_float32_shards_and_the_model_is_the_same_object() -> None:
    for level in ("O0", "O1", "O2"):
        begin(level, True)
        model = Net()
        assert amp.prepare_model(model) is model and amp.prepare_model(model) is model
        assert isinstance(model, Net) and amp.unwrap(model) is model
        assert all(is_sharded(p) and p.dtype is torch.float32 for p in model.parameters())
        sharded = [m for m in model.modules() if isinstance(m, engine().FSDPModule)]
        assert sharded == [model, *model.blocks]
        optimizer = adamw(model.parameters())
        assert [id(p) for p in amp.master_params(optimizer)] == [id(p) for p in model.parameters()]


def check_losses_at_o0_are_those_of_a_whole_model() -> None:
    both("O0", ROUNDING)


def check_losses_at_o0_with_batch_norm_and_clipping() -> None:
    both("O0", ROUNDING, lambda: Net("batch"), clip=0.5)


def check_losses_with_accumulated_gradients() -> None:
    both("O0", ROUNDING, parts=3)


def check_losses_at_o1_are_within_rounding_to_half() -> None:
    both("O1", HALF_ROUNDING, clip=0.5)


def check_losses_at_o1_with_synchronised_batch_norm() -> None:
    both("O1", HALF_ROUNDING, lambda: Net("batch"))


def check_losses_at_o2_are_within_rounding_to_half() -> None:
    both("O2", HALF_ROUNDING, clip=0.5)


def check_losses_at_o2_with_batch_norm_in_float32() -> None:
    both("O2", HALF_ROUNDING, lambda: Net("batch"))
    both("O2", HALF_ROUNDING, lambda: Net("batch"), keep_batchnorm_fp32=False)


def check_losses_in_float16_with_a_dynamic_scale() -> None:
    for level in ("O1", "O2"):
        both(level, 5e-3, dtype="fp16", clip=0.5, init_scale=256.0)


if __name__ == "__main__":
    run_checks(globals())
