"""Three ranks: one decision about every step, in the group of ``amp.init`` and in a group of the script's own."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import amp_runtime as amp
import torch
import torch.distributed as dist
from support import assert_close, run_checks
from torch import nn

RANKS = 3
INF = float("inf")


class Half(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x.float()).half().float()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def batch(number: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(6, 3, generator=generator), 5 * torch.randn(6, 1, generator=generator)


def mine(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[dist.get_rank() * 2 : dist.get_rank() * 2 + 2]


def loss_of(model: Any, number: int = 0) -> torch.Tensor:
    x, y = batch(number)
    loss: torch.Tensor = (model(mine(x)) - mine(y)).square().mean()
    return loss


def everywhere(value: Any) -> list[Any]:
    box: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(box, value)
    return box


def assert_same(value: Any) -> None:
    values = everywhere(value)
    assert values == values[:1] * len(values), values


@contextmanager
def counted(calls: list[int]) -> Iterator[None]:
    """Notes the sizes of all tensors that are all-reduced."""
    plain = dist.all_reduce

    def noting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        calls.append(tensor.numel())
        return plain(tensor, *args, **kwargs)

    dist.all_reduce = noting
    try:
        yield
    finally:
        dist.all_reduce = plain


def values_of(model: nn.Module) -> list[float]:
    return [value for p in model.parameters() for value in p.detach().float().flatten().tolist()]


def start(**settings: Any) -> None:
    settings = {"opt_level": "O1", "ddp": True, "dtype": "fp16", **settings}
    amp.scaler.max_skips = 200
    amp.scaler.process_group = None
    amp.init(**settings)
    amp.scaler.restart()


# -- amp.init(ddp=True) --


def check_an_overflow_on_one_rank_is_everybody_s(delayed: bool = False) -> None:
    for dtype in ("fp16", "bf16"):
        for where in ("loss", "gradient"):  # before and after the gradients are averaged
            for level in ("O1", "O2"):
                start(opt_level=level, dtype=dtype, init_scale=2.0**8)
                # What one rank writes into averaged gradients is seen by the others only where they ask.
                amp.scaler.process_group = dist.group.WORLD if where == "gradient" and not delayed else None
                model = amp.prepare_model(net(), delay_allreduce=delayed)
                optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
                for number in range(6):
                    before = values_of(model)
                    optimizer.zero_grad()
                    loss = loss_of(model, number)
                    bad = number % 2 == 1 and amp.rank() == number // 2
                    amp.scaler.scale(loss * (float("nan") if bad and where == "loss" else 1.0)).backward()
                    if bad and where == "gradient":
                        next(model.parameters()).grad[0, 0] = INF
                    amp.scaler.step(optimizer)
                    amp.scaler.update()
                    moved = values_of(model) != before
                    assert (amp.scaler.stepped, moved) == (number % 2 == 0,) * 2, (dtype, where, level, number)
                    assert_same((values_of(model), amp.scaler.get_scale(), amp.scaler.state_dict()))


def check_an_overflow_of_delayed_gradients() -> None:
    check_an_overflow_on_one_rank_is_everybody_s(delayed=True)


def check_random_overflows_leave_the_ranks_equal() -> None:
    start(growth_interval=2)
    model = amp.prepare_model(net(), delay_allreduce=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = random.Random(amp.rank())
    for number in range(60):
        optimizer.zero_grad()
        amp.scaler.scale(loss_of(model, number) * (INF if generator.random() < 0.15 else 1.0)).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
    assert 5 < amp.scaler.skipped_steps < 55
    assert_same((values_of(model), amp.scaler.state_dict()))
    assert all(torch.isfinite(p).all() for p in model.parameters())


def check_one_of_several_losses_falls_on_all_ranks() -> None:
    start(num_losses=2)
    model = amp.prepare_model(net(), delay_allreduce=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(3):
        optimizer.zero_grad()
        amp.scaler.scale(loss_of(model), loss_id=0).backward()
        amp.scaler.scale(loss_of(model) * (INF if number == 1 and amp.rank() == 2 else 1.0), loss_id=1).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
        assert amp.scaler.stepped is (number != 1)
    scales = [amp.scaler.get_scale(k) for k in range(2)]
    assert scales[1] == 32768.0
    assert_same((scales, values_of(model)))


def check_scales_that_differ_are_noticed_and_made_equal() -> None:
    start()
    model = amp.prepare_model(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    amp.scaler.update(2.0 ** (8 + amp.rank()))
    before = values_of(model)
    for number in range(3):
        optimizer.zero_grad()
        amp.scaler.scale(loss_of(model)).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
        assert amp.scaler.stepped is (number > 0), "gradients of different units are not applied"
    assert before != values_of(model)
    assert_same((values_of(model), amp.scaler.get_scale()))


def check_clipping_measures_the_gradient_of_the_whole_batch() -> None:
    reference = net()
    x, y = batch()
    (reference(x) - y).square().mean().backward()
    expected = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
    for level in ("O0", "O1"):
        for delayed in (False, True):
            for combined in (False, True):
                start(opt_level=level, combine_grad=combined)
                model = amp.prepare_model(net(), delay_allreduce=delayed)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
                for target in (model, optimizer, list(model.parameters())):
                    optimizer.zero_grad()
                    amp.scaler.scale(loss_of(model)).backward()
                    norm = amp.clip_grad_norm_(target, 0.5)
                    assert_close([norm], [expected], 1e-5)
                    amp.scaler.step(optimizer)
                    amp.scaler.update()
                    assert_close([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()], 1e-5)


def check_combined_gradients_travel_in_one_piece() -> None:
    final = {}
    for combined in (False, True):
        start(combine_grad=combined)
        model = amp.prepare_model(net(), delay_allreduce=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        calls: list[int] = []
        with counted(calls):
            for number in range(5):
                optimizer.zero_grad(set_to_none=number == 3)
                loss = loss_of(model, number) * (INF if number == 2 and amp.rank() == 1 else 1.0)
                if not (number == 4 and amp.rank() == 0):  # no gradients here, but on the others
                    amp.scaler.scale(loss).backward()
                else:
                    optimizer.zero_grad()
                    amp.scaler.scale(loss)
                amp.scaler.step(optimizer)
                amp.scaler.update()
                assert amp.scaler.stepped is (number != 2)
        assert_same(values_of(model))
        final[combined] = values_of(model)
        # The gradients, and for each whether it exists.
        assert sum(p.numel() + 1 for p in model.parameters()) in calls
    # Three ranks sum pieces of one length in another order than pieces of another.
    assert torch.allclose(torch.tensor(final[True]), torch.tensor(final[False]), rtol=1e-5)


def check_line_searches_of_the_ranks_take_the_same_turns() -> None:
    def train(model: Any, loss: Any, scaler: Any) -> list[float]:
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            value: torch.Tensor = loss(model)
            scaler.scale(value).backward() if scaler else value.backward()
            return value

        for _ in range(2):
            scaler.step(optimizer, closure) if scaler else optimizer.step(closure)
        return values_of(model)

    x, y = batch()
    expected = train(net(), lambda model: (model(x) - y).square().mean(), None)
    for delayed in (False, True):
        start(dtype="bf16")
        model = amp.prepare_model(net(), delay_allreduce=delayed)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = train(model, loss_of, amp.scaler)
        assert_same(got)
        assert_close(torch.tensor(got), torch.tensor(expected), 1e-3)


def check_an_overflow_in_a_closure_on_one_rank_undoes_the_step_on_all() -> None:
    start(dtype="bf16")
    model = amp.prepare_model(net())
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    calls: list[int] = []

    def closure() -> torch.Tensor:
        calls.append(1)
        optimizer.zero_grad()
        loss = loss_of(model)
        (loss * (INF if len(calls) == 3 and amp.rank() == 1 else 1.0)).backward()
        return loss

    before = values_of(model)
    amp.scaler.step(optimizer, closure)
    assert not amp.scaler.stepped and values_of(model) == before
    assert_same(len(calls))
    amp.scaler.step(optimizer, closure)
    assert amp.scaler.stepped
    assert_same(values_of(model))


def check_the_error_names_the_module_on_the_rank_that_overflowed() -> None:
    start()
    amp.scaler.max_skips = 3
    model = amp.prepare_model(nn.Sequential(nn.Linear(3, 3), Half(), nn.Linear(3, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        amp.unwrap(model)[0].weight.fill_(1.0)
    try:
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.full((2, 3), 9.0 if amp.rank() == 2 else 0.1)
            amp.scaler.scale(model(x).square().mean()).backward()
            amp.scaler.step(optimizer)
            amp.scaler.update()
    except amp.GradientOverflowError as error:
        message = str(error)
    assert "Sequential.1 (Half)" in message and "on rank 2" in message, message
    assert_same(message)


def check_uneven_batches_leave_scales_equal() -> None:
    start(growth_interval=2)
    model = amp.prepare_model(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = [(i % 3, i) for i in range(7)]
    loader = torch.utils.data.DataLoader(data, batch_size=1)  # type: ignore[arg-type]
    for _ in amp.prepare_loader(loader, uneven="join"):
        optimizer.zero_grad()
        amp.scaler.scale(loss_of(model)).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
    assert_same((amp.scaler.state_dict(), values_of(model)))
    assert amp.scaler.get_scale() > 65536


# -- a process group of the script's own --


def own_group(**settings: Any) -> None:
    """Ends the group of ``amp.init`` and makes one as a script would."""
    amp.barrier()
    amp.shutdown()
    if not dist.is_initialized():
        environment = os.environ
        server = dist.TCPStore(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), None, False)
        rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        # Under a name of its own: what the first group left in the store would be taken for this one's.
        dist.init_process_group("gloo", store=dist.PrefixStore("own", server), rank=rank, world_size=size)
    amp.init("O1", **{"dtype": "fp16", **settings})
    assert amp.world_size() == 1 and dist.get_world_size() == 3


def check_own_group_ddp_models_are_agreed_on() -> None:
    own_group()
    inner = amp.prepare_model(net())
    model = nn.parallel.DistributedDataParallel(inner)
    head = nn.Parameter(torch.ones(1))  # not averaged: it belongs to this rank, as in a model that is partly parallel
    optimizer = torch.optim.SGD([*model.parameters(), head], lr=0.01)
    for number in range(4):
        optimizer.zero_grad()
        own = head.sum() * (INF if number == 1 and dist.get_rank() == 2 else 1.0)
        amp.scaler.scale(loss_of(model, number) + own).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
        assert amp.scaler.stepped is (number != 1)
    assert amp.scaler.get_scale() == 32768.0
    assert_same(values_of(model))


def check_own_group_gradients_are_averaged_by_a_reducer() -> None:
    own_group()
    torch.manual_seed(dist.get_rank())
    model = amp.prepare_model(net())
    reducer = amp.Reducer(model)
    assert_same(values_of(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(2):
        optimizer.zero_grad()
        amp.scaler.scale(loss_of(model, number)).backward()
        reducer.reduce()
        amp.scaler.step(optimizer)
        amp.scaler.update()
        assert_same(values_of(model))
    tensor = torch.full((2,), float(dist.get_rank()))
    amp.Reducer([tensor]).reduce()
    assert tensor.tolist() == [1.0, 1.0]


def check_own_group_training_on_one_rank_does_not_wait_for_the_others() -> None:
    own_group()
    model = nn.parallel.DistributedDataParallel(amp.prepare_model(net()))
    if dist.get_rank() == 0:
        probe = amp.prepare_model(nn.Linear(2, 1))
        optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
        for number in range(3):
            amp.scaler.scale(probe(torch.ones(1, 2)).sum() * (INF if number == 0 else 1.0)).backward()
            amp.scaler.step(optimizer)
            amp.scaler.update()
            optimizer.zero_grad()
        assert amp.scaler.skipped_steps == 1
    dist.barrier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(2):  # rank 0's scale has fallen meanwhile
        optimizer.zero_grad()
        amp.scaler.scale(loss_of(model)).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
        assert amp.scaler.stepped is (number == 1)
    assert_same((values_of(model), amp.scaler.get_scale()))


def check_own_group_join_does_not_wait_for_ranks_without_data() -> None:
    for settings in ({"loss_scale": 128.0}, {"dtype": "bf16"}):
        own_group(**settings)
        model = nn.parallel.DistributedDataParallel(amp.prepare_model(net()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with model.join():
            for number in range(1 + 2 * dist.get_rank()):
                optimizer.zero_grad()
                amp.scaler.scale(loss_of(model, number) * (INF if number == 1 else 1.0)).backward()
                amp.scaler.step(optimizer)
                amp.scaler.update()
                assert amp.scaler.stepped is (number != 1)
        assert_same(values_of(model))


def check_own_group_join_is_refused_where_the_ranks_scales_would_part() -> None:
    own_group()
    model = nn.parallel.DistributedDataParallel(amp.prepare_model(net()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    refused = ""
    try:
        with model.join():
            amp.scaler.scale(loss_of(model)).backward()
            amp.scaler.step(optimizer)
    except RuntimeError as error:
        refused = str(error)
    assert "uneven='join'" in refused and "dynamic" in refused


def check_own_group_can_be_named() -> None:
    own_group()
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def run() -> bool:
        optimizer.zero_grad()
        amp.scaler.scale(weight.sum() * (INF if dist.get_rank() == 1 else 1.0)).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
        return amp.scaler.stepped

    assert everywhere(run()) == [True, False, True], "nobody knows that these belong together"
    amp.scaler.update(1024.0)
    amp.scaler.process_group = dist.group.WORLD
    try:
        assert everywhere(run()) == [False] * 3
    finally:
        amp.scaler.process_group = None


def check_own_group_is_left() -> None:
    dist.barrier()
    dist.destroy_process_group()
    amp.shutdown()
    assert amp.scaler.get_scale() == 1.0 and not amp.scaler.stepped


if __name__ == "__main__":
    run_checks(globals())
