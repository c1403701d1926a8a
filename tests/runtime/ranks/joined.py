"""Parts put together: several backward passes, closures, uneven data, and everything at once."""

from __future__ import annotations

from typing import Any

import amp_runtime as amp
import torch
from support import assert_equal_on_ranks, gathered, run_checks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def three_samples() -> Any:
    """Two batches on rank 0, one on rank 1."""
    return amp.prepare_loader(DataLoader(TensorDataset(torch.tensor([[1.0], [2.0], [4.0]])), 1), uneven="join")


def one_weight(value: float) -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def check_two_backward_passes_are_averaged_from_the_first_step_on() -> None:
    x = torch.full((2, 4), 1.0 + amp.rank())
    for level in ("O0", "O1", "O2"):
        for first_without_sync in (False, True):
            amp.init(level, ddp=True, dtype="fp16", init_scale=4.0)  # type: ignore[arg-type]
            torch.manual_seed(0)
            model = amp.prepare_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            found = []
            for passes in (2, 2, 1):
                optimizer.zero_grad()
                with amp.no_sync(model, enabled=first_without_sync and not found):
                    with amp.autocast():
                        output = model(x)
                        losses = [output.sum(), output.square().sum()]
                    for loss in losses if passes == 2 else [losses[0] + losses[1]]:
                        amp.scaler.scale(loss).backward(retain_graph=True)
                amp.scaler.unscale_(optimizer)
                found.append(torch.cat([p.grad.flatten().float() for p in model.parameters()]))
                amp.scaler.step(optimizer)
                amp.scaler.update()
            assert_equal_on_ranks(found[1:])
            torch.testing.assert_close(found[1], found[2], rtol=1e-2, atol=1e-2)
            assert first_without_sync or torch.equal(found[0], found[1])


def check_a_submodule_called_from_outside_and_then_the_model() -> None:
    amp.init("O0", ddp=True)
    model = amp.prepare_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
    x = torch.full((2, 4), 1.0 + amp.rank())
    for run in (lambda: model[1](model[0](x)), lambda: model[1](model[0](x)), lambda: model(x)):
        model.zero_grad()
        run().sum().backward()
        assert_equal_on_ranks([p.grad for p in model.parameters()])


def check_a_line_search_takes_the_same_turns_at_o0() -> None:
    amp.init("O0", ddp=True)
    model = amp.prepare_model(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)))
    generator = torch.Generator().manual_seed(amp.rank())
    x, y = torch.randn(8, 3, generator=generator), torch.randn(8, 1, generator=generator) * (1 + 10 * amp.rank())
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    evaluations = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        amp.scaler.scale(loss).backward()
        evaluations.append(loss.item())
        return loss

    for _ in range(3):
        amp.scaler.step(optimizer, closure)
        amp.scaler.update()
    assert len(set(gathered(len(evaluations)))) == 1
    assert amp.reduce_mean(evaluations[-1]) < amp.reduce_mean(evaluations[0])
    assert_equal_on_ranks(model.parameters())


def check_a_closure_on_a_shadowing_rank_weighs_nothing() -> None:
    amp.init("O1", ddp=True, dtype="bf16")
    model = amp.prepare_model(one_weight(0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    steps, seen = [], []
    for (x,) in three_samples():
        before = model.weight.item()

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).sum() + x.sum()
            amp.scaler.scale(loss).backward()
            return loss

        seen.append(amp.scaler.step(optimizer, closure).item() - before * x.item())
        amp.scaler.update()
        steps.append(before - model.weight.item())
    assert steps == [1.5, 4.0]
    assert amp.rank() == 1 or abs(seen[1] - 4.0) < 0.1, "the optimizer sees the mean over ranks with data"


def check_a_penalty_sees_true_gradients_while_a_rank_shadows() -> None:
    for dtype in ("fp16", "bf16"):
        amp.init("O1", ddp=True, dtype=dtype, init_scale=8.0)
        model = amp.prepare_model(one_weight(2.0), delay_allreduce=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        found = []
        for (x,) in three_samples():
            optimizer.zero_grad()
            x.requires_grad_()
            loss = model(x).sum()
            scaled = torch.autograd.grad(amp.scaler.scale(loss), [x], create_graph=True)
            (gradient,) = amp.scaler.unscale_gradients(scaled)
            assert amp.shadowing() or gradient.item() == 2.0
            amp.scaler.scale(loss + gradient.square().sum()).backward()
            amp.scaler.step(optimizer)
            amp.scaler.update()
            found.append(model.weight.grad.item())
        assert found == [1.5 + 4.0, 4.0 + 4.0]


def check_levels_averages_clipping_accumulation_and_uneven_data_together() -> None:
    data = torch.randn(23, 4, generator=torch.Generator().manual_seed(3))
    results = []
    for delayed, combined in ((False, False), (True, False), (True, True)):
        amp.init("O2", ddp=True, dtype="fp16", init_scale=2.0**8, combine_grad=combined, growth_interval=3)
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        model = amp.prepare_model(inner, delay_allreduce=delayed)
        optimizers = [
            torch.optim.Adam(inner[0].parameters(), lr=1e-2),
            amp.optim.SGD([*inner[1].parameters(), *inner[3].parameters()], lr=1e-2, momentum=0.9),
        ]
        average = amp.EMA(model, 0.5)
        loader = amp.prepare_loader(DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), 3), uneven="join")
        stepped = []
        for epoch in range(3):
            for number, (x, y) in enumerate(loader):
                last = number % 2 == 1 or number == len(loader) - 1
                with amp.no_sync(model, enabled=not last):
                    with amp.autocast():
                        loss = (model(x) - y).square().mean()
                    if (epoch, number, amp.rank()) == (1, 1, 1):
                        loss = loss * float("inf")
                    amp.scaler.scale(loss / 2).backward()
                if last:
                    amp.clip_grad_norm_(model, 0.5)
                    for optimizer in optimizers:
                        amp.scaler.step(optimizer)
                        stepped.append(amp.scaler.stepped)
                        optimizer.zero_grad()
                    amp.scaler.update()
                    average.update()
        assert stepped == [True] * 4 + [False] * 2 + [True] * 6
        assert average.updates == 5 and amp.scaler.get_scale() == 2.0**8
        weights = [*inner.state_dict().values(), *average.state_dict().values()]
        assert_equal_on_ranks([weight for weight in weights if weight.is_floating_point()])
        results.append(torch.cat([weight.flatten().float() for weight in weights]))
        assert results[-1].isfinite().all()
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=0, atol=2e-3)


if __name__ == "__main__":
    run_checks(globals())
