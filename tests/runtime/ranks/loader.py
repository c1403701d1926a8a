"""Three ranks: loaders that end at different times, and positions to resume from."""

from __future__ import annotations

import copy
import random
from typing import Any

import amp_runtime as amp
import numpy as np
import torch
import torch.nn.functional as F
from amp_runtime._data import loader as loader_module
from support import assert_close, assert_equal_on_ranks, gathered, run_checks
from torch import nn
from torch.utils import data

RANKS = 3


class Numbers(data.Dataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return index


class Stream(data.IterableDataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Any:
        worker = data.get_worker_info()
        return iter(torch.randperm(self.size).tolist() if worker is None else range(worker.id, self.size, 2))


def own_and_shadowed(loader: Any) -> tuple[list[int], int, int]:
    """The rank's own items, its number of batches, and how many of them were only for the others' sake."""
    own, steps, shadowed = [], 0, 0
    for batch in loader:
        steps += 1
        if amp.shadowing():
            shadowed += 1
        else:
            own += [int(v) for v in batch]
    assert not amp.shadowing()
    return own, steps, shadowed


def assert_joined(loader: Any, items: list[int], shadowed: list[int]) -> None:
    parts = gathered(own_and_shadowed(loader))
    assert sorted(v for own, _, _ in parts for v in own) == items, "each item once, and none repeated"
    assert len({steps for _, steps, _ in parts}) == 1, "every rank takes part in every step"
    assert [count for _, _, count in parts] == shadowed


# -- join --


def check_join_shares_everything_once() -> None:
    for options in ({}, {"shuffle": True}, {"sampler": data.SubsetRandomSampler(range(10))}, {"num_workers": 1}):
        loader = amp.prepare_loader(data.DataLoader(Numbers(10), batch_size=1, **options), uneven="join")
        assert len(loader) == 4
        for _ in range(2):
            assert_joined(loader, list(range(10)), [0, 1, 1])
    groups = [[0, 1], [2], [3, 4, 5], [6]]
    assert_joined(
        amp.prepare_loader(data.DataLoader(Numbers(7), batch_sampler=groups), uneven="join"), list(range(7)), [0, 1, 1]
    )
    for workers in (0, 2):
        stream = data.DataLoader(Stream(8), batch_size=1, num_workers=workers)
        first, *_ = parts = gathered(own_and_shadowed(amp.prepare_loader(stream, uneven="join")))
        assert sorted(v for own, _, _ in parts for v in own) == list(range(8))
        assert {steps for _, steps, _ in parts} == {first[1]}
    assert_joined(amp.prepare_loader([[0], [1], [2], [3]], uneven="join"), [0, 1, 2, 3], [0, 1, 1])


def check_join_with_persistent_workers() -> None:
    loader = data.DataLoader(Numbers(7), batch_size=1, num_workers=1, persistent_workers=True)
    loader = amp.prepare_loader(loader, uneven="join")
    for _ in range(3):
        assert_joined(loader, list(range(7)), [0, 1, 1])


def check_a_rank_without_any_batch_shadows_from_the_first_step() -> None:
    mine = data.DataLoader(Numbers((0, 2, 5)[amp.rank()]), batch_size=1)
    assert_joined(amp.prepare_loader(mine, uneven="join", sharded=True), [0, 0, 1, 1, 2, 3, 4], [5, 3, 0])


def check_batches_that_the_loop_changes_are_repeated_as_they_were() -> None:
    rows = [{"x": torch.ones(2), "y": 1}, {"x": torch.ones(2), "y": 1}][: 1 if amp.rank() else 2]
    for batch in amp.prepare_loader(rows, uneven="join", sharded=True):
        assert batch["x"].add_(1).tolist() == [2.0, 2.0] and batch.pop("y") == 1


def check_leaving_the_loop_early_ends_the_shadowing() -> None:
    loader = amp.prepare_loader(data.DataLoader(Numbers(1 + 3 * (amp.rank() == 0)), 1), uneven="join", sharded=True)
    for number, _ in enumerate(loader):
        assert amp.shadowing() is (number > 0 and amp.rank() > 0)
        if number == 2:
            break
    assert not amp.shadowing()
    assert amp.reduce_mean(float(amp.rank())) == 1.0


def check_sharded_loaders_pad_and_drop() -> None:
    for uneven, expected in (("drop", [[0, 1]] * 3), ("pad", [[0, 1, 0, 1, 0], [0, 1, 2, 0, 1], [0, 1, 2, 3, 4]])):
        for source in (data.DataLoader(Numbers((2, 3, 5)[amp.rank()]), batch_size=1), None):
            mine = source or [torch.tensor([v]) for v in range((2, 3, 5)[amp.rank()])]
            loader = amp.prepare_loader(mine, uneven=uneven, sharded=True)
            assert (loader is mine) is (source is not None), "a loader of the rank's own stays itself"
            for _ in range(2):
                assert gathered([int(v) for v in loader]) == expected


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.out = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(torch.tanh(self.first(x))))


def rows(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of one rank: three, six and none."""
    generator = torch.Generator().manual_seed(rank)
    count = (3, 6, 0)[rank]
    return [(torch.randn(4, 4, generator=generator), torch.randn(4, 1, generator=generator)) for _ in range(count)]


def train_joined(model: Any, optimizer: Any, accumulated: int, epochs: int = 2) -> list[float]:
    loader = amp.prepare_loader(
        data.DataLoader(rows(amp.rank()) or Numbers(0), batch_size=None), uneven="join", sharded=True
    )
    losses = []
    for _ in range(epochs):
        for number, (x, y) in enumerate(loader):
            last = (number + 1) % accumulated == 0
            with amp.no_sync(model, enabled=not last), amp.autocast():
                loss = F.mse_loss(model(x), y) / accumulated
                amp.scaler.scale(loss).backward()
            losses.append(amp.reduce_mean(loss.detach().float()).item())
            if last:
                amp.scaler.step(optimizer)
                amp.scaler.update()
                optimizer.zero_grad()
    return losses


def train_alone(model: Any, optimizer: Any, accumulated: int, epochs: int = 2) -> list[float]:
    """Each step's batch is what the ranks that have data had together."""
    losses = []
    for _ in range(epochs):
        for number in range(6):
            together = [rows(rank)[number] for rank in range(3) if number < len(rows(rank))]
            loss = F.mse_loss(model(torch.cat([x for x, _ in together])), torch.cat([y for _, y in together]))
            (loss / accumulated).backward()
            losses.append(loss.item() / accumulated)
            if (number + 1) % accumulated == 0:
                optimizer.step()
                optimizer.zero_grad()
    return losses


def check_joined_training_is_that_of_the_ranks_with_data() -> None:
    for accumulated in (1, 2, 3):
        for options in ({}, {"delay_allreduce": True}, {"find_unused_parameters": True}):
            torch.manual_seed(3)
            model = Net()
            alone = copy.deepcopy(model)
            prepared = amp.prepare_model(model, **options)
            losses = train_joined(prepared, torch.optim.SGD(model.parameters(), 0.05, 0.5), accumulated)
            expected = train_alone(alone, torch.optim.SGD(alone.parameters(), 0.05, 0.5), accumulated)
            assert_equal_on_ranks([*model.parameters(), *model.buffers()])
            assert_close(model.parameters(), alone.parameters(), 1e-5)
            assert_close(model.buffers(), alone.buffers(), 1e-5)
            assert_close([torch.tensor(losses)], [torch.tensor(expected)], 1e-5)


def check_joined_scales_stay_equal_in_fp16() -> None:
    amp.init("O1", ddp=True, dtype="fp16", init_scale=256, growth_interval=4)
    for overflow, scale in ((None, 512), (1, 512), (3, 256)):
        torch.manual_seed(3)
        model = Net()
        prepared = amp.prepare_model(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        skipped = amp.scaler.skipped_steps
        loader = amp.prepare_loader(
            data.DataLoader(rows(amp.rank()) or Numbers(0), batch_size=None), uneven="join", sharded=True
        )
        for number, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            with amp.autocast():
                loss = F.mse_loss(prepared(x), y)
            if number == overflow and amp.rank() == 1:
                loss = loss * float("inf")
            amp.scaler.scale(loss).backward()
            amp.scaler.step(optimizer)
            amp.scaler.update()
        assert number == 5
        assert amp.scaler.skipped_steps - skipped == (overflow is not None)
        assert len(set(gathered((amp.scaler.get_scale(), amp.scaler.state_dict()["_growth_tracker"])))) == 1
        assert amp.scaler.get_scale() == scale
        assert_equal_on_ranks(model.parameters())
        assert all(torch.isfinite(p).all() for p in model.parameters())
    amp.init("O0", ddp=True)


def check_metrics_leave_shadowing_ranks_out() -> None:
    for number, (value,) in enumerate(
        amp.prepare_loader([[2.0 * amp.rank()]] * (1 + amp.rank()), uneven="join", sharded=True)
    ):
        with_data = [rank for rank in range(3) if rank >= number]
        assert amp.reduce_mean(value) == sum(2.0 * rank for rank in with_data) / len(with_data)
        assert amp.reduce_sum(1) == len(with_data)
        assert amp.reduce_min(torch.tensor([amp.rank(), 5])).tolist() == [with_data[0], 5]
        assert amp.reduce_max(-1.0 * amp.rank()) == -with_data[0]
        assert amp.gather(torch.tensor([amp.rank()])).tolist() == with_data


# -- position --


def order_of(loader: Any, epochs: int) -> list[list[int]]:
    return [[int(v) for batch in loader for v in batch] for _ in range(epochs)]


def make(kind: str, workers: int) -> Any:
    """A loader as the process makes it that begins, or begins again."""
    torch.manual_seed(17)
    random.seed(17)
    loader_module._prepared_loaders = 0
    options: dict[str, Any] = {"num_workers": workers}
    if kind == "shuffled":
        options.update(dataset=Numbers(33), batch_size=2, shuffle=True)
    elif kind == "generator":
        options.update(
            dataset=Numbers(33), batch_size=2, generator=torch.Generator().manual_seed(4),
            sampler=data.RandomSampler(range(33), replacement=True, generator=torch.Generator().manual_seed(8)),
        )  # fmt: skip
    elif kind == "batches":
        options.update(dataset=Numbers(33), batch_sampler=[[v, v + 1] for v in range(32)])
    elif kind == "stream":
        options.update(dataset=Stream(33), batch_size=2)
    elif kind == "single":
        options.update(dataset=Numbers(12), batch_size=None, shuffle=True)
    return amp.prepare_loader(list(range(90)) if kind == "list" else data.DataLoader(**options))


def read(loader: Any, stop: tuple[int, int] | None = None) -> tuple[list[list[Any]], Any]:
    """Two epochs as lists of batches, or what comes until the state was taken in an epoch's batch."""
    epochs: list[list[Any]] = []
    for epoch in range(2):
        epochs.append([])
        for number, batch in enumerate(loader):
            epochs[-1].append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
            if stop == (epoch, number):
                return epochs, amp.loader_state(loader)
    return epochs, amp.loader_state(loader)


def check_positions_resume_in_mid_epoch_with_any_number_of_workers() -> None:
    for kind in ("shuffled", "generator", "batches", "stream", "single", "list"):
        whole, _ = read(make(kind, 0))
        assert whole[0] != whole[1] or kind in ("batches", "list")
        last = len(whole[0]) - 1
        for stop, workers in (((0, 0), 0), ((0, 2), 0), ((1, 1), 0), ((1, last), 0), ((0, last), 0), ((1, 1), 1)):
            if workers and kind in ("list", "stream"):
                continue
            seen, state = read(make(kind, workers), stop)
            assert seen[: stop[0]] == whole[: stop[0]] and seen[stop[0]] == whole[stop[0]][: stop[1] + 1]
            assert (state["epoch"], state["batches"], state["running"]) == (stop[0], stop[1] + 1, True)
            fresh = make(kind, 0 if workers else int(kind not in ("list", "stream")))
            amp.load_loader_state(fresh, state)
            assert amp.loader_state(fresh) == state
            rest = [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in fresh]
            assert rest == whole[stop[0]][stop[1] + 1 :], (kind, stop)
            if stop[0] == 0:
                following = [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in fresh]
                assert following == whole[1] or kind == "stream", (kind, stop)
        seen, state = read(make(kind, 0))
        assert (state["epoch"], state["batches"], state["running"]) == (2, 0, False)
        fresh, longer = make(kind, 0), make(kind, 0)
        amp.load_loader_state(fresh, state)
        read(longer)
        assert read(fresh)[0] == read(longer)[0]


def check_a_position_of_other_batches_is_refused() -> None:
    loader = amp.prepare_loader(data.DataLoader(Numbers(12), batch_size=2))
    next(iterator := iter(loader))
    state = amp.loader_state(loader)
    del iterator
    longer, by_hand = (data.DataLoader(Numbers(size), batch_size=2) for size in (18, 4))
    others = {
        "after 1 of 2 batches on 3 process(es), for a loader of 3 on 3; allowed: one with the same data": longer,
        "with the same data, batch size and number of processes": amp.prepare_loader(by_hand, sharded=True),
    }
    for problem, other in others.items():
        try:
            amp.load_loader_state(amp.prepare_loader(other), {**state, "ranks": 3 - ("size" in problem)})
        except ValueError as error:
            assert problem in str(error)
        else:
            raise AssertionError("no error")


def check_a_joined_loader_resumes() -> None:
    def loader() -> Any:
        return amp.prepare_loader(data.DataLoader(Numbers(1 + 2 * amp.rank()), 1), uneven="join", sharded=True)

    first = loader()
    for _, _ in zip(range(2), first, strict=False):
        state = amp.loader_state(first)
    fresh = loader()
    amp.load_loader_state(fresh, state)
    assert_joined(fresh, [2, 2, 3, 4], [3, 2, 0])


def check_gathered_predictions_are_in_the_order_of_the_dataset() -> None:
    for size in (1, 7, 9):
        for uneven in ("pad", "join"):
            loader = amp.prepare_loader(data.DataLoader(Numbers(size), batch_size=2), uneven=uneven)
            parts = [batch for batch in loader if not amp.shadowing()]
            mine = torch.cat([torch.zeros(0, dtype=torch.long), *parts])
            assert amp.gather(mine, length=size).tolist() == list(range(size)), (size, uneven)


def check_a_number_of_steps_is_that_of_the_share() -> None:
    for size, batch_size, drop_last in (
        (90, 5, False),
        (96, 32, False),
        (127, 32, True),
        (95, 32, True),
        (7, 2, False),
    ):
        loader = data.DataLoader(Numbers(size), batch_size=batch_size, shuffle=True, drop_last=drop_last)
        own = len(amp.prepare_loader(loader))
        whole = len(loader)
        for given in (loader, amp.prepare_loader(loader)):
            assert amp.share_of(whole, given) == own and amp.share_of(4 * whole, given) == 4 * own
            assert amp.share_of(2.5 * whole, given) == 2.5 * own
        if not drop_last:
            assert amp.share_of(whole) == own
    batches = amp.prepare_loader([1, 2, 3, 4, 5, 6])
    assert amp.share_of(60, batches) == 20


def check_one_rank_may_ask_for_its_share_alone() -> None:
    loader, batches = data.DataLoader(Numbers(90), batch_size=5), list(range(12))
    if amp.is_main_process():
        assert amp.share_of(18, loader) == 6 and amp.share_of(12, batches) == 4
    shared = amp.prepare_loader(loader, uneven="drop")
    assert amp.gather(torch.cat(list(shared))).sum() == sum(range(90))


def check_what_is_sharded_already_counts_as_shared() -> None:
    own = amp.prepare_loader(data.DataLoader(Numbers(5 + amp.rank())), uneven="drop", sharded=True)
    assert amp.prepare_loader(own) is own and amp.share_of(len(own), own) == len(own)
    assert amp.sum_of_shares(1, own) == 3


def check_a_sum_is_that_of_all_shares_and_of_a_whole_loader_it_is_known() -> None:
    whole = data.DataLoader(Numbers(90), batch_size=5)
    share = amp.prepare_loader(whole)
    own = sum(int(batch.sum()) for batch in share)
    assert amp.sum_of_shares(own, share) == sum(range(90))
    assert amp.sum_of_shares(7, whole) == 7
    assert amp.sum_of_shares(np.int64(3), share) == 9 and type(amp.sum_of_shares(np.int64(3), share)) is np.int64
    total = amp.reduce_sum(np.array([1.5, amp.rank()]))
    assert isinstance(total, np.ndarray) and total.tolist() == [4.5, 3.0]


if __name__ == "__main__":
    run_checks(globals())
