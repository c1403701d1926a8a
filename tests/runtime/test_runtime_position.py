"""Loaders that go on where they stopped, in one process."""

from __future__ import annotations

import copy
import io
import pickle
import random
from collections.abc import Iterator
from typing import Any

import amp_runtime as amp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils import data

pytestmark = pytest.mark.heavy


class Points(data.Dataset[Any]):
    """Draws from all global generators where ``noisy``, and remembers what was read."""

    def __init__(self, size: int = 20, noisy: bool = False) -> None:
        self.size, self.noisy = size, noisy
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read.append(index)
        noise = torch.rand(1).item() + random.random() + np.random.rand() if self.noisy else 0.0
        return torch.tensor([float(index), noise])


class Stream(data.IterableDataset[Any]):
    def __init__(self, size: int = 20) -> None:
        self.size = size
        self.read: list[int] = []

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in torch.randperm(self.size).tolist():
            self.read.append(index)
            yield torch.tensor([float(index)])


def seed() -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)


def make(kind: str, workers: int = 0, persistent: bool = False) -> data.DataLoader[Any]:
    options: dict[str, Any] = {"batch_size": 3, "num_workers": workers, "persistent_workers": persistent}
    if kind == "stream":
        return data.DataLoader(Stream(), **options)
    if kind == "weighted":
        options["sampler"] = data.WeightedRandomSampler([1.0] * 20, 20)
    elif kind == "generator":
        options.update(shuffle=True, generator=torch.Generator().manual_seed(2))
    elif kind == "batches":
        options.update(batch_sampler=data.BatchSampler(data.RandomSampler(range(20)), 3, True), batch_size=1)
    elif kind == "single":
        options.update(batch_size=None, shuffle=True)
    else:
        options["shuffle"] = True
    return data.DataLoader(Points(noisy=kind == "noisy"), **options)


def global_state() -> tuple[Any, ...]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def set_global_state(state: tuple[Any, ...]) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])


def train(loader: Any, record: list[float], epochs: int, stop: int | None = None) -> Any:
    """A loop that draws between the batches; returns what is to be saved after ``stop`` batches."""
    for _ in range(epochs):
        for batch in loader:
            record.append(batch.sum().item() + F.dropout(torch.ones(8)).sum().item() + random.random())
            if len(record) == stop:
                return pickle.dumps((amp.loader_state(loader), global_state()))
    return None


def run(kind: str, workers: int, stop: int | None = None, persistent: bool = False) -> tuple[list[float], Any]:
    seed()
    loader = amp.prepare_loader(make(kind, workers, persistent))
    record: list[float] = []
    return record, train(loader, record, 3, stop)


def resume(kind: str, workers: int, saved: bytes, persistent: bool = False) -> list[float]:
    state, states = pickle.loads(saved)
    torch.manual_seed(77)  # a new process has other numbers until they are restored
    loader = amp.prepare_loader(make(kind, workers, persistent))
    amp.load_loader_state(loader, state)
    set_global_state(states)
    record: list[float] = []
    train(loader, record, 3 - state["epoch"])
    return record


@pytest.mark.parametrize("kind", ["shuffled", "noisy", "weighted", "generator", "batches", "single", "stream"])
def test_a_run_resumes_bit_for_bit_at_every_step(kind: str) -> None:
    whole, _ = run(kind, 0)
    assert len(whole) in (60, 18, 21)
    for stop in range(1, len(whole)):
        before, saved = run(kind, 0, stop)
        assert before == whole[:stop]
        assert resume(kind, 0, saved) == whole[stop:], stop


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (1, 2)])
def test_the_number_of_workers_may_change(before: int, after: int) -> None:
    whole, _ = run("shuffled", 0)
    for stop in (1, 7, 9):  # the last batch of the first epoch is the seventh
        start, saved = run("shuffled", before, stop)
        assert start == whole[:stop], "workers change nothing by themselves"
        assert resume("shuffled", after, saved) == whole[stop:], stop


def test_persistent_workers_resume_too() -> None:
    whole, _ = run("shuffled", 1, persistent=True)
    for stop in (5, 7, 9, 16):
        _, saved = run("shuffled", 1, stop, persistent=True)
        for workers in (1, 2):
            assert resume("shuffled", workers, saved, persistent=True) == whole[stop:], (stop, workers)
    assert resume("shuffled", 0, saved) == whole[16:]


def test_persistent_workers_resume_between_epochs_and_in_a_loader_that_has_run() -> None:
    whole, _ = run("shuffled", 1, persistent=True)
    seed()
    loader = amp.prepare_loader(make("shuffled", 1, persistent=True))
    record: list[float] = []
    train(loader, record, 1)
    boundary = amp.loader_state(loader), global_state()
    _, saved = run("shuffled", 1, 4, persistent=True)
    fresh = amp.prepare_loader(make("shuffled", 1, persistent=True))
    for target, (state, states) in ((fresh, boundary), (loader, pickle.loads(saved))):
        amp.load_loader_state(target, state)
        set_global_state(states)
        rest: list[float] = []
        train(target, rest, 2)
        begun = 7 if state is boundary[0] else 4
        assert record == whole[:7] and rest == whole[begun:][: len(rest)]


def test_between_epochs_persistent_workers_are_at_a_boundary() -> None:
    loader = amp.prepare_loader(make("shuffled", 1, persistent=True))
    list(loader)
    assert {k: v for k, v in amp.loader_state(loader).items() if k in ("epoch", "batches", "running")} == {
        "epoch": 1, "batches": 0, "running": False,
    }  # fmt: skip


def test_random_augmentation_in_workers_comes_back_with_replay() -> None:
    whole, _ = run("noisy", 2)
    _, saved = run("noisy", 2, 4)
    state, states = pickle.loads(saved)
    rest = {}
    for replay in (False, True):
        loader = amp.prepare_loader(make("noisy", 2))
        amp.load_loader_state(loader, state, replay=replay)
        set_global_state(states)
        rest[replay] = []
        train(loader, rest[replay], 1)
    assert rest[True] == whole[4:7]
    assert rest[False] != whole[4:7]


def test_nothing_is_loaded_twice() -> None:
    _, saved = run("shuffled", 0, 4)
    loader = make("shuffled")
    assert amp.prepare_loader(loader) is loader
    amp.load_loader_state(loader, pickle.loads(saved)[0])
    assert sum(len(batch) for batch in loader) == 20 - 12 == len(loader.dataset.read)  # type: ignore[attr-defined]
    stream = amp.prepare_loader(make("stream"))
    amp.load_loader_state(stream, pickle.loads(run("stream", 0, 4)[1])[0])
    assert sum(len(batch) for batch in stream) == 8 and len(stream.dataset.read) == 20  # type: ignore[attr-defined]


def test_a_prepared_loader_is_the_same_object_and_draws_the_same_numbers() -> None:
    results = []
    for prepare in (lambda loader: loader, amp.prepare_loader):
        seed()
        loader = make("noisy")
        attributes = {k: v for k, v in vars(loader).items() if not k.startswith("_")}
        assert prepare(loader) is loader and prepare(loader) is loader
        assert type(loader) is data.DataLoader
        assert {k: v for k, v in vars(loader).items() if not k.startswith("_")} == attributes
        results.append(([batch.tolist() for _ in range(2) for batch in loader], torch.rand(1), np.random.rand()))
    assert results[0] == results[1]


def test_copies_and_pickles_of_a_prepared_loader_have_positions_of_their_own() -> None:
    loader = amp.prepare_loader(make("shuffled"))
    iterator = iter(loader)
    next(iterator)
    for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert amp.loader_state(other)["running"] is False
        assert len(list(other)) == 7
        assert (amp.loader_state(other)["epoch"], amp.loader_state(loader)["batches"]) == (2, 1)
    del iterator
    assert amp.loader_state(loader)["running"] is False, "a loop that was left is at the end of its epoch"


def test_a_state_is_read_without_trust() -> None:
    loader = amp.prepare_loader(make("generator"))
    iterator = iter(loader)
    next(iterator)
    file = io.BytesIO()
    torch.save(amp.loader_state(loader), file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["batches"] == 1


def test_a_loader_may_be_made_and_loaded_before_it_ever_ran() -> None:
    state = amp.loader_state(amp.prepare_loader(make("shuffled")))
    assert (state["epoch"], state["batches"], state["running"]) == (0, 0, False)
    seed()
    loader = amp.prepare_loader(make("shuffled"))
    amp.load_loader_state(loader, state)
    record: list[float] = []
    train(loader, record, 3)
    assert record == run("shuffled", 0)[0]


class Own(data.DataLoader[Any]):
    def __iter__(self) -> Any:
        yield from ()


class Stateful:
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return iter([1])

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_loaders_without_a_position_say_so_and_those_with_a_state_are_asked() -> None:
    for loader, text in (
        (amp.prepare_loader(Own(Points())), "an iteration of its own"),
        (make("shuffled"), "not prepared"),
        ([1, 2], "not prepared"),
    ):
        with pytest.raises(TypeError, match=f"amp.loader_state got a {type(loader).__name__}.*{text}.*allowed"):
            amp.loader_state(loader)
        with pytest.raises(TypeError, match=f"load_loader_state got a {type(loader).__name__}"):
            amp.load_loader_state(loader, {})
    first, second = Stateful(), Stateful()
    first.at = 4
    amp.load_loader_state(second, amp.loader_state(first))
    assert second.at == 4


def test_states_that_do_not_fit_are_refused() -> None:
    loader = amp.prepare_loader(make("shuffled"))
    with pytest.raises(ValueError, match=r"keys \['scale'\]; allowed: what amp.loader_state returned"):
        amp.load_loader_state(loader, {"scale": 1.0})
    for _ in loader:
        state = amp.loader_state(loader)
        break
    problem = r"after 1 of 7 batches on 1 process\(es\), for a loader of 4 on 1; allowed: one with the same data$"
    with pytest.raises(ValueError, match=problem):
        amp.load_loader_state(amp.prepare_loader(data.DataLoader(Points(10), batch_size=3, shuffle=True)), state)
    other = amp.prepare_loader(data.DataLoader(Points(), batch_size=2, shuffle=True))
    with pytest.raises(ValueError, match="the same data, batch size and number of processes with replay=True"):
        amp.load_loader_state(other, state, replay=True)
    stream = amp.prepare_loader(data.DataLoader(Stream(), batch_size=4))
    for _ in stream:
        state = amp.loader_state(stream)
        break
    with pytest.raises(ValueError, match=r"the same data, batch size and number of processes$"):
        amp.load_loader_state(amp.prepare_loader(make("stream")), {**state, "ranks": 2})


@pytest.mark.parametrize("kind", ["shuffled", "weighted", "generator", "single"])
def test_the_batch_size_may_change_in_mid_epoch(kind: str) -> None:
    seed()
    loader = amp.prepare_loader(make(kind))
    whole = [index for batch in loader for index in batch.reshape(-1, 2)[:, 0].tolist()]
    seed()
    seen: list[float] = []
    loader = amp.prepare_loader(make(kind))
    for sizes in (3, 2, 5, 4):
        for batch, _ in zip(loader, range(2), strict=False):
            seen += batch.reshape(-1, 2)[:, 0].tolist()
            state = pickle.loads(pickle.dumps(amp.loader_state(loader)))
        torch.manual_seed(77)
        loader = amp.prepare_loader(make(kind))
        if kind != "single":
            data.DataLoader.__setattr__(loader, "_DataLoader__initialized", False)
            loader.batch_size = sizes
            loader.batch_sampler = data.BatchSampler(loader.sampler, sizes, False)
        amp.load_loader_state(loader, state)
    seen += [index for batch in loader for index in batch.reshape(-1, 2)[:, 0].tolist()]
    assert seen == whole
    assert len(list(loader)) == len(loader), "the next epoch is whole again"


@pytest.mark.parametrize("uneven", ["pad", "drop", "join"])
def test_alone_uneven_and_sharded_change_nothing(uneven: Any) -> None:
    loader = make("shuffled")
    assert amp.prepare_loader(loader, uneven=uneven, sharded=True) is loader
    assert sorted(int(row[0]) for batch in loader for row in batch) == list(range(20))
    assert not amp.shadowing()
    with pytest.raises(ValueError, match="uneven='both'; allowed: 'pad', 'drop', 'join'"):
        amp.prepare_loader(loader, uneven="both")  # type: ignore[arg-type]
