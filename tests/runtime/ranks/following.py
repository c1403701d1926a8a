"""Two ranks: models and loaders that a script goes on changing after they were prepared."""

from __future__ import annotations

import copy
import inspect
import io
from collections.abc import Iterator
from typing import Any

import amp_runtime as amp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from support import assert_equal_on_ranks, gathered, run_checks
from torch import nn
from torch.nn.utils import prune
from torch.utils import data


class Codebook(nn.Module):
    """Writes its buffers in all the ways that there are: through ``.data``, in place, and anew."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("used", torch.tensor([True, False]))
        self.register_buffer("queue", torch.zeros(2, 4), persistent=False)
        self.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.data.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            self.count += 1 + amp.rank()
            self.used = torch.rand(2) > 0.5
            self.queue = x[:2].detach().clone()
            self.phase[0] = torch.randn(()) + 1j
        return x + self.mean


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen.add_(x.detach().sum())
        return x


class LateMask(nn.Module):
    """Has no buffer until it sees the first large batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 8:
            self._keep(x)
        return x

    def _keep(self, x: torch.Tensor) -> None:
        self.register_buffer("mask", x.detach()[0] > 0)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mask = LateMask()
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.mask(x))


class Net(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.parts = nn.Sequential(*parts)
        self.register_buffer("offset", torch.randn(4))
        self.head = nn.Linear(4, 2)
        self.temperature = 1.0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.head(self.parts(self.body(x)) + self.offset) * scale / self.temperature


def train(model: Any, optimizer: Any, steps: int = 2) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        amp.scaler.scale(model(torch.randn(6, 4)).square().mean()).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
        assert_equal_on_ranks([*model.parameters(), *model.buffers()])


def sgd(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)


def sent(run: Any) -> list[str]:
    """The collectives of Python's interface that run in a call."""
    names: list[str] = []
    originals = {name: getattr(dist, name) for name in ("all_reduce", "broadcast")}

    def counting(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            names.append(name)
            return originals[name](*args, **kwargs)

        return call

    for name in originals:
        setattr(dist, name, counting(name))
    try:
        run()
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    return names


def step(model: Any, optimizer: Any) -> None:
    amp.scaler.scale(model(torch.randn(6, 4)).square().mean()).backward()
    amp.scaler.step(optimizer)


def check_buffers_that_a_forward_pass_writes_are_rank_0s_after_each_step() -> None:
    for delayed in (False, True):
        model = amp.prepare_model(Net(Codebook(), nn.BatchNorm1d(4)), delay_allreduce=delayed, sync_bn=False)
        train(model, sgd(model), 3)


def check_buffers_of_every_model_that_trains_in_turn_are_kept_in_step() -> None:
    one, other = (amp.prepare_model(Net(Codebook()), delay_allreduce=True) for _ in range(2))
    first, second = sgd(one), sgd(other)
    for _ in range(2):
        for optimizer in (first, second):
            amp.scaler.scale((one(torch.randn(6, 4)) * other(torch.randn(6, 4))).mean()).backward()
            amp.scaler.step(optimizer)
    assert_equal_on_ranks([*one.buffers(), *other.buffers()])


def check_a_skipped_step_brings_buffers_in_step_too() -> None:
    amp.init("O1", dtype="fp16", loss_scale=1.0)
    model = amp.prepare_model(Net(Codebook()), delay_allreduce=True)
    optimizer = sgd(model)
    amp.scaler.scale(model(torch.randn(6, 4)).sum() * float("inf")).backward()
    amp.scaler.step(optimizer)
    assert not amp.scaler.stepped
    assert_equal_on_ranks(model.buffers())
    amp.init("O0")


def check_a_loss_without_parameters_keeps_rank_0s_buffers() -> None:
    amp.init("O1", dtype="bf16")
    model, criterion = amp.prepare_model(Net()), Codebook()
    assert amp.prepare_model(criterion) is criterion and criterion.mean.dtype is torch.float32
    optimizer = sgd(model)
    for _ in range(2):
        amp.scaler.scale(criterion(F.pad(model(torch.randn(6, 4)), (0, 2))).square().mean()).backward()
        amp.scaler.step(optimizer)
        assert_equal_on_ranks(criterion.buffers())
    amp.init("O0")


def check_constant_buffers_and_synchronised_batch_norm_send_nothing() -> None:
    constant = amp.prepare_model(Net(nn.BatchNorm1d(4)))
    optimizer = sgd(constant)
    step(constant, optimizer)
    assert sent(lambda: step(constant, optimizer)).count("broadcast") == 0
    del constant.offset
    constant.offset = 0.0
    step(constant, optimizer)
    names = sent(lambda: amp.scaler.step(optimizer))
    assert names == [], names


def check_a_rank_may_run_a_forward_pass_alone() -> None:
    model = amp.prepare_model(Net(Codebook()))
    optimizer = sgd(model)
    if amp.is_main_process():
        model(torch.randn(3, 4))
    train(model, optimizer)
    if not amp.is_main_process():
        with torch.no_grad():
            model(torch.randn(3, 4))
    train(model, optimizer)


def check_a_cache_that_grows_on_one_rank_keeps_nobody_waiting() -> None:
    model = amp.prepare_model(Net(Counting()))
    optimizer = sgd(model)
    amp.unwrap(model).parts[0].register_buffer("cache", torch.zeros(2 + amp.rank()))
    step(model, optimizer)
    assert_equal_on_ranks([model.parts[0].seen, model.offset])
    assert model.parts[0].cache.numel() == 2 + amp.rank()


def check_a_buffer_that_one_rank_has_first_keeps_nobody_waiting() -> None:
    model = amp.prepare_model(Plain())
    optimizer = sgd(model)
    for large in (0, 1, None):
        model(torch.randn(12 if amp.rank() == large or large is None else 4, 4)).sum().backward()
        amp.scaler.step(optimizer)
    assert_equal_on_ranks(model.buffers())


def check_modules_that_are_replaced_are_followed() -> None:
    for delayed in (False, True):
        model = amp.prepare_model(Net(Counting()), delay_allreduce=delayed)
        train(model, sgd(model))
        model.parts[0] = nn.Sequential(nn.Linear(4, 4), Counting())  # deep inside, and drawn differently on each rank
        train(model, sgd(model))
        model.head = nn.Linear(4, 3)
        optimizer = sgd(model.body)
        optimizer.add_param_group({"params": model.head.parameters(), "lr": 0.1})
        train(model, optimizer)
        model.head.weight = nn.Parameter(torch.randn(3, 4))
        train(model, sgd(model))
        prune.random_unstructured(model.body, "weight", amount=0.5)
        train(model, sgd(model))
        nn.utils.parametrizations.weight_norm(model.head)
        train(model, sgd(model))
        model.body.requires_grad_(False)
        train(model, sgd(model))
        model.body.requires_grad_(True)
        train(model, sgd(model))


def check_a_model_that_was_moved_away_and_back_is_averaged() -> None:
    """``torch.save(model.cpu().state_dict(), path); model.to(device)``: another type stands for another device."""
    torch.manual_seed(0)
    for options in ({}, {"find_unused_parameters": True}):
        model = amp.prepare_model(nn.Linear(4, 1), **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 4) + amp.rank()).sum().backward()
            optimizer.step()
            assert_equal_on_ranks(model.parameters())
            amp.unwrap(model).double().float()


def check_copies_are_plain_and_may_be_trained() -> None:
    for delayed in (False, True):
        model = amp.prepare_model(Net(Counting()), delay_allreduce=delayed)
        optimizer = sgd(model)
        train(model, optimizer)
        copied, of_copy = copy.deepcopy((model, optimizer))
        assert type(copied) is Net and of_copy.param_groups[0]["params"][0] is copied.body.weight
        before = [p.detach().clone() for p in model.parameters()]
        train(copied, of_copy)
        again = copy.deepcopy(copied)
        train(again, sgd(again))
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        if amp.is_main_process():
            copy.deepcopy(model)(torch.randn(2, 4)).sum().backward()  # a copy of one rank alone waits for nobody


def check_parameters_added_to_a_known_optimizer_must_belong_to_a_prepared_model() -> None:
    model = amp.prepare_model(Net())
    optimizer = sgd(model)
    step(model, optimizer)
    optimizer.add_param_group({"params": nn.Linear(2, 2).parameters()})
    try:
        step(model, optimizer)
    except RuntimeError as error:
        assert "belongs to no prepared model" in str(error)
    else:
        raise AssertionError("nothing averages their gradients")


def check_the_wrapper_answers_as_the_model_does() -> None:
    class Stack(nn.Sequential):
        def __add__(self, other: int) -> int:  # type: ignore[override]
            return len(self) + other

        def __enter__(self) -> str:
            return "entered"

        def __exit__(self, *_: object) -> None: ...

        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            """Runs it."""
            for part in self:
                x = part(x)
            return x * scale

    plain = Stack(nn.Linear(4, 4), nn.Tanh())
    model = amp.prepare_model(plain)
    assert model is not plain and isinstance(model, amp.DistributedModel)
    assert isinstance(model, Stack) and isinstance(model, nn.Sequential) and not isinstance(model, nn.Linear)
    assert model.__class__ is Stack and type(model).__name__ == "Stack" and repr(model) == repr(plain)
    assert len(model) == 2 and model[0] is plain[0] and list(model) == list(plain) and model + 1 == 3
    with model as entered:
        assert entered == "entered"
    assert inspect.signature(model.forward) == inspect.signature(plain.forward) and model.forward.__doc__ == "Runs it."
    model.temperature = 2.0
    assert plain.temperature == 2.0 and hasattr(model, "temperature")
    del model.temperature
    assert not hasattr(plain, "temperature") and not hasattr(model, "temperature")
    assert type(model.__class__(nn.Linear(1, 1))) is Stack
    model[1] = nn.Linear(4, 4)
    train_plain = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, train_plain)
    assert_equal_on_ranks(model.parameters())
    file = io.BytesIO()
    torch.save(amp.prepare_model(Net()), file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is Net


# ---- loaders -------------------------------------------------------------------------------------------------------


class Weighted(data.Sampler[int]):
    def __init__(self, size: int) -> None:
        self.weights = torch.ones(size)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.multinomial(self.weights, len(self.weights), replacement=True).tolist())

    def __len__(self) -> int:
        return len(self.weights)


class Growing(data.Dataset[int]):
    def __init__(self, size: int) -> None:
        self.samples = list(range(size))
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        return self.samples[index] + 1000 * self.epoch


class Stream(data.IterableDataset[int]):
    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(1000 * self.epoch, 1000 * self.epoch + 8))


def together(loader: Any) -> list[int]:
    """What the ranks got of an epoch."""
    return sorted(item for items in gathered([int(item) for batch in loader for item in batch]) for item in items)


def check_assignments_through_a_prepared_loader_take_effect() -> None:
    loader = amp.prepare_loader(data.DataLoader(Growing(32), batch_size=4, sampler=Weighted(32)))
    assert max(together(loader)) > 8
    loader.sampler.weights = (torch.arange(32) < 4).float()
    assert max(together(loader)) < 4
    assert isinstance(loader.sampler, Weighted) and isinstance(loader, data.DataLoader)
    loader.dataset.epoch = 1
    assert min(together(loader)) >= 1000


def check_batch_sizes_may_ramp() -> None:
    loader = amp.prepare_loader(data.DataLoader(Growing(32), batch_size=4, shuffle=True))
    loader.batch_sampler.batch_size = 8
    assert [len(batch) for batch in loader] == [8, 8] and len(loader) == 2
    sampler = data.BatchSampler(data.RandomSampler(range(32)), 4, False)
    loader = amp.prepare_loader(data.DataLoader(Growing(32), batch_sampler=sampler))
    loader.batch_sampler.batch_size = 8
    assert sampler.batch_size == 8 and [len(batch) for batch in loader] == [8, 8]
    loader.collate_fn = tuple
    assert all(type(batch) is tuple for batch in loader)


def check_a_dataset_may_grow_and_shrink() -> None:
    for shuffle in (False, True):
        loader = amp.prepare_loader(data.DataLoader(Growing(8), batch_size=2, shuffle=shuffle))
        assert together(loader) == list(range(8)) and len(loader) == 2
        loader.dataset.samples.extend(range(8, 16))
        assert len(loader) == 4 and together(loader) == list(range(16))
        del loader.dataset.samples[4:]
        assert len(loader) == 1 and together(loader) == list(range(4))


def check_an_iterable_dataset_is_told() -> None:
    for workers in (0, 1):
        loader = amp.prepare_loader(data.DataLoader(Stream(), batch_size=2, num_workers=workers))
        loader.dataset.epoch = 3
        assert isinstance(loader.dataset, Stream) and together(loader) == list(range(3000, 3008))


def check_shared_samplers_reach_spawned_workers() -> None:
    loader = amp.prepare_loader(
        data.DataLoader(Stream(), batch_size=2, num_workers=1, multiprocessing_context="forkserver")
    )
    copied = copy.deepcopy(loader.dataset)
    assert type(copied) is type(loader.dataset) and isinstance(copied, Stream)


if __name__ == "__main__":
    run_checks(globals())
