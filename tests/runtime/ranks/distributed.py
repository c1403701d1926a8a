"""Two ranks: when gradients travel and how, and what the ranks count together."""

from __future__ import annotations

import contextlib
import copy
import math
from pathlib import Path
from typing import Any

import amp_runtime as amp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from amp_runtime._distributed.exchange import Exchange
from support import assert_close, assert_equal_on_ranks, gathered, run_checks
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head, self.spare = nn.Linear(6, 5), nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, spare: bool = False) -> torch.Tensor:
        hidden = torch.tanh(self.encoder(x))
        return self.spare(hidden) if spare else self.head(hidden)


def twin(spare: bool = False) -> tuple[Any, Any]:
    torch.manual_seed(3)
    model = Net()
    if not spare:
        del model.spare
    return model, copy.deepcopy(model)


def batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(11)
    return [
        (torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(steps)
    ]


def mine(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[amp.rank() :: 2]


@contextlib.contextmanager
def counted(prepared: Any) -> Any:
    """How many gradient buckets torch DDP sends, and how many all-reduces run in Python."""
    sent: list[str] = []
    original = dist.all_reduce

    def counting(*args: Any, **kwargs: Any) -> Any:
        sent.append("all_reduce")
        return original(*args, **kwargs)

    def send(bucket: Any) -> Any:
        sent.append("bucket")
        work = original(bucket.buffer().div_(2), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    if isinstance(prepared, amp.DistributedModel):
        prepared.__dict__["_engine"].ddp.register_comm_hook(None, lambda state, bucket: send(bucket))
    dist.all_reduce = counting
    try:
        yield sent
    finally:
        dist.all_reduce = original


def _accumulate(style: str, prepared: Any, steps: int, accumulated: int, optimizer: Any, sent: list[str]) -> list[int]:
    """Trains with one of the ways to write accumulation; returns how much was sent in each micro-step."""
    counts = []
    for number, (x, y) in enumerate(batches(steps)):
        last = (number + 1) % accumulated == 0
        before = len(sent)
        quiet = (lambda: contextlib.nullcontext()) if last else (lambda: amp.no_sync(prepared))
        if style == "both":
            with quiet():
                (F.cross_entropy(prepared(mine(x)), mine(y)) / accumulated).backward()
        elif style == "forward":
            with quiet():
                loss = F.cross_entropy(prepared(mine(x)), mine(y)) / accumulated
            loss.backward()
        elif style == "backward":
            loss = F.cross_entropy(prepared(mine(x)), mine(y)) / accumulated
            with quiet():
                loss.backward()
        elif style == "scaled":
            with amp.no_sync(prepared, enabled=not last):
                loss = F.cross_entropy(prepared(mine(x)), mine(y)) / accumulated
                amp.scaler.scale(loss).backward()
        if last:
            amp.scaler.step(optimizer)
            optimizer.zero_grad()
        counts.append(len(sent) - before)
    return counts


def check_ranks_times_accumulation_equal_one_large_batch_and_k_minus_1_syncs_are_skipped() -> None:
    can_take_back = hasattr(torch._C._distributed_c10d.Reducer, "_reset_state")  # not in the oldest torch
    for style in ("both", "forward", "backward", "scaled"):
        for options in ({}, {"delay_allreduce": True}, {"find_unused_parameters": True}, {"static_graph": True}):
            model, alone = twin()
            prepared = amp.prepare_model(model, **options)
            optimizer = torch.optim.SGD(model.parameters(), 0.5, 0.9)
            with counted(prepared) as sent:
                counts = _accumulate(style, prepared, 6, 3, optimizer, sent)
            expected = [False, False, True, False, False, True]
            expected[0] = "static_graph" in options  # learned in the first pass, which is sent
            if style == "backward" and options.keys() & {"static_graph", "find_unused_parameters"}:
                expected = [True] * 6  # there the forward decides, and the result is right all the same
            if style != "backward" or can_take_back:
                assert [bool(count) for count in counts] == expected, (style, options, counts)
            reference = torch.optim.SGD(alone.parameters(), 0.5, 0.9)
            for start in (0, 3):
                group = batches(6)[start : start + 3]
                whole = torch.cat([x for x, _ in group]), torch.cat([y for _, y in group])
                reference.zero_grad()
                F.cross_entropy(alone(whole[0]), whole[1]).backward()
                reference.step()
            assert_equal_on_ranks(model.parameters())
            assert_close(model.parameters(), alone.parameters(), 1e-5)


def check_a_forward_in_no_sync_silences_one_backward_only() -> None:
    model, alone = twin()
    prepared = amp.prepare_model(model)
    (x, y), (u, v), (p, q) = batches(3)
    with prepared.no_sync():
        loss = F.cross_entropy(prepared(mine(x)), mine(y))
    loss.backward()
    F.cross_entropy(prepared.head(torch.tanh(prepared.encoder(mine(u)))), mine(v)).backward()  # past the wrapper
    first = F.cross_entropy(prepared(mine(p)), mine(q))
    with prepared.no_sync():  # another pass, inside a synchronised one
        F.cross_entropy(prepared(mine(x)), mine(y)).backward()
    first.backward()
    for a, b in ((x, y), (u, v), (p, q), (x, y)):
        F.cross_entropy(alone(a), b).backward()
    assert_close([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])


def check_one_backward_of_a_forward_in_no_sync_and_one_outside_is_synchronised() -> None:
    (x, y), (u, v) = batches(2)
    for outside_first in (True, False):
        model, alone = twin()
        prepared = amp.prepare_model(model)
        losses = []
        for inside in (False, True) if outside_first else (True, False):
            with amp.no_sync(prepared, enabled=inside):
                losses.append(F.cross_entropy(prepared(mine(x if inside else u)), mine(y if inside else v)))
        sum(losses).backward()
        (F.cross_entropy(alone(x), y) + F.cross_entropy(alone(u), v)).backward()
        assert_close([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])


def _trained(steps: int = 4, use: Any = None, **options: Any) -> tuple[Any, Any]:
    model, alone = twin(spare=use is not None)
    prepared = amp.prepare_model(model, **options)
    for m, cut in ((prepared, mine), (alone, lambda t: t)):
        optimizer = torch.optim.SGD(m.parameters(), 0.5, 0.9)
        for number, (x, y) in enumerate(batches(steps)):
            optimizer.zero_grad()
            F.cross_entropy(m(cut(x)) if use is None else m(cut(x), use(number)), cut(y)).backward()
            if cut is mine:
                amp.scaler.step(optimizer)
            else:
                optimizer.step()
    assert_equal_on_ranks(model.parameters())
    return model, alone


def check_options_change_how_gradients_travel_and_not_what_they_are() -> None:
    for options in (
        {"static_graph": True},
        {"message_size": 16},
        {"gradient_predivide_factor": 2.0},
        {"gradient_predivide_factor": 0.5, "allreduce_always_fp32": True, "message_size": 8},
        {"delay_allreduce": True, "message_size": 16},
        {"delay_allreduce": True, "gradient_predivide_factor": 4.0, "allreduce_always_fp32": True},
        {"find_unused_parameters": True, "gradient_predivide_factor": 2.0},
    ):
        model, alone = _trained(**options)
        assert_close(model.parameters(), alone.parameters(), 1e-5)
    model, alone = _trained(use=lambda number: number % 2 == 1, find_unused_parameters=True)
    assert_close(model.parameters(), alone.parameters(), 1e-5)
    model, alone = _trained(use=lambda number: number > 1, delay_allreduce=True)
    assert_close(model.parameters(), alone.parameters(), 1e-5)
    model, alone = _trained(use=lambda number: False, static_graph=True)  # a part that is never used
    assert_close(model.parameters(), alone.parameters(), 1e-5)


def check_message_size_makes_buckets() -> None:
    sizes = {}
    for message_size in (None, 8):
        model, _ = twin()
        prepared = amp.prepare_model(model, message_size=message_size)
        with counted(prepared) as sent:
            for x, y in batches(3):  # torch fits its buckets after the first pass
                F.cross_entropy(prepared(mine(x)), mine(y)).backward()
        sizes[message_size] = len(sent)
    assert sizes[8] > sizes[None] == 3, sizes


def check_large_half_gradients_are_summed_in_range() -> None:
    for delay in (False, True):
        for options, finite in (
            ({}, True),
            ({"gradient_predivide_factor": 0.5}, False),
            ({"gradient_predivide_factor": 0.5, "allreduce_always_fp32": True}, True),
        ):
            model = nn.Linear(2, 1, bias=False).half()
            prepared = amp.prepare_model(model, delay_allreduce=delay, **options)
            (prepared(torch.full((1, 2), 100.0).half()) * 400.0).sum().backward()  # 40000 of at most 65504
            if delay:
                amp.scaler.unscale_(torch.optim.SGD(model.parameters(), 0.1))
            gradient = model.weight.grad
            assert gradient.dtype is torch.float16
            assert bool(torch.isfinite(gradient).all()) is finite, (delay, options, gradient)
            assert not finite or gradient.tolist() == [[40000.0, 40000.0]]


def check_gradients_may_be_summed_and_not_averaged() -> None:
    for predivide, expected in ((None, 3.0), (2.0, 1.5)):  # as Apex, which divides before the sum in any case
        exchange = Exchange(predivide=predivide, average=False)
        model = nn.Linear(1, 1, bias=False)
        prepared = amp.DistributedModel(model, exchange=exchange)
        prepared(torch.full((1, 1), 1.0 + amp.rank())).sum().backward()
        assert model.weight.grad is not None and model.weight.grad.item() == expected


def check_wrong_options_are_refused() -> None:
    for options, text in (
        ({"message_size": 0}, "message_size=0"),
        ({"gradient_predivide_factor": -1.0}, "gradient_predivide_factor=-1.0"),
        ({"gradient_predivide_factor": math.inf}, "gradient_predivide_factor=inf"),
        ({"delay_allreduce": True, "static_graph": True}, "static_graph=True"),
    ):
        try:
            amp.prepare_model(nn.Linear(1, 1), **options)
        except ValueError as error:
            assert text in str(error) and "allowed" in str(error)
        else:
            raise AssertionError(options)


def check_the_reducer_averages_when_told() -> None:
    torch.manual_seed(amp.rank())
    model = Net()
    reducer = amp.Reducer(model)
    assert_equal_on_ranks(model.parameters())
    model(torch.full((2, 6), 1.0 + amp.rank()), spare=amp.rank() == 1).sum().backward()
    own = gathered({name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()})
    reducer.reduce()
    for name, parameter in model.named_parameters():
        parts = [part[name] for part in own if part[name] is not None]
        assert_close([parameter.grad], [sum(parts) / 2], 1e-6)
    one, two = torch.full((3,), 1.0 + amp.rank()), torch.full((2,), amp.rank() * 4.0, dtype=torch.float64)
    amp.Reducer([one, None, two]).reduce()
    assert one.tolist() == [1.5] * 3 and two.tolist() == [2.0] * 2
    for wrong in (3, "gradients", one):
        try:
            amp.Reducer(wrong)
        except TypeError as error:
            assert "allowed" in str(error)
        else:
            raise AssertionError(wrong)


# -- metrics --


def check_reductions_of_numbers_tensors_and_trees() -> None:
    rank = amp.rank()
    value = {"loss": torch.tensor([1.0, 3.0]) * (rank + 1), "n": rank + 1, "more": [(True, "name"), None, 2.0 * rank]}
    mean = amp.reduce_mean(value)
    assert mean["loss"].tolist() == [1.5, 4.5] and mean["n"] == 1.5 and mean["more"] == [(1.0, "name"), None, 1.0]
    total = amp.reduce_sum(value)
    assert total["n"] == 3 and isinstance(total["n"], int) and total["more"] == [(2, "name"), None, 2.0]
    assert amp.reduce_max(value)["n"] == 2 and amp.reduce_min(value)["loss"].tolist() == [1.0, 3.0]
    assert amp.reduce_max(torch.tensor([rank == 1, False])).tolist() == [True, False]
    assert amp.reduce_min(torch.tensor([rank == 1, True])).tolist() == [False, True]
    assert amp.reduce_sum(torch.tensor([rank == 1, True])).tolist() == [1, 2]
    short = amp.reduce_max(torch.tensor([rank, -rank], dtype=torch.int16))
    assert short.dtype is torch.int16 and short.tolist() == [1, 0]
    assert amp.reduce_mean(torch.tensor([rank])).tolist() == [0.5]
    assert amp.reduce_mean(torch.tensor([1 + rank * 1j])).tolist() == [1 + 0.5j]
    assert value["n"] == rank + 1 and value["loss"].tolist() == [1.0 * (rank + 1), 3.0 * (rank + 1)]
    try:
        amp.reduce_max(torch.tensor([1j]))
    except TypeError as error:
        assert "complex64" in str(error)
    else:
        raise AssertionError("no error")


def check_weighted_means() -> None:
    rank = amp.rank()
    assert amp.reduce_mean(1.0 + rank, weight=(3, 1)[rank]) == 1.25
    assert amp.reduce_mean(torch.tensor([1.0 + rank]), weight=torch.tensor((3, 1)[rank])).tolist() == [1.25]
    empty = torch.tensor(math.nan) if rank else torch.tensor(2.0)
    assert amp.reduce_mean(empty, weight=1 - rank).item() == 2.0, "the mean over no samples does not count"
    assert math.isnan(amp.reduce_mean(1.0, weight=0)) and amp.reduce_mean(torch.ones(2), weight=0).isnan().all()
    for wrong in (-1, math.nan):
        try:
            amp.reduce_mean(1.0, weight=wrong)
        except ValueError as error:
            assert f"weight={wrong}" in str(error)
        else:
            raise AssertionError(wrong)


def check_gathering() -> None:
    rank = amp.rank()
    own = torch.arange(2 + rank) * 10 + rank
    assert amp.gather(own).tolist() == [0, 10, 1, 11, 21]
    assert amp.gather(own, length=4).tolist() == [0, 1, 10, 11]
    assert amp.gather(torch.zeros(2 * rank, 3)).shape == (2, 3)
    assert amp.gather(torch.zeros(0, 3)).shape == (0, 3) == amp.gather(torch.zeros(0, 3), length=5).shape
    assert amp.gather(rank).tolist() == [0, 1] == amp.gather(torch.tensor(rank)).tolist()
    tree = amp.gather({"a": [torch.tensor([rank == 0])], "b": torch.tensor([[1j * rank]])})
    assert tree["a"][0].tolist() == [True, False] and tree["b"].tolist() == [[0j], [1j]]
    half = amp.gather(torch.full((1, 2), float(rank), dtype=torch.bfloat16, requires_grad=True))
    assert half.dtype is torch.bfloat16 and not half.requires_grad and half.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    short = amp.gather(torch.full((1,), rank, dtype=torch.int16))
    assert short.dtype is torch.int16 and short.tolist() == [0, 1]
    try:
        amp.gather(torch.zeros(1, 2 + rank))
    except ValueError as error:
        assert "(1, 2) torch.float32 on rank 0, (1, 3) torch.float32 on rank 1" in str(error)
    else:
        raise AssertionError("no error")


def check_weights_and_buffers_of_every_type_are_rank_0_s() -> None:
    rank, types = amp.rank(), (torch.bool, torch.int16, torch.bfloat16, torch.complex64, torch.float64)
    model = nn.Linear(2, 1)
    for number, dtype in enumerate(types):
        model.register_buffer(f"buffer{number}", torch.full((2, 3), rank == 0).to(dtype).t())
        model.register_buffer(f"scalar{number}", torch.tensor(rank == 0).to(dtype))
    before = {name: buffer.stride() for name, buffer in model.named_buffers()}
    amp.prepare_model(model, delay_allreduce=True)  # torch's DDP does not take int16
    for name, buffer in model.named_buffers():
        assert (buffer == 1).all() and buffer.stride() == before[name], (rank, name)


def check_no_thread_outlives_the_group() -> None:
    kept = amp.prepare_model(nn.Linear(2, 1), gradient_predivide_factor=2.0)
    kept(torch.ones(1, 2)).sum().backward()
    amp.barrier()
    amp.shutdown()
    assert kept(torch.ones(1, 2)).shape == (1, 1)
    tasks = Path("/proc/self/task")
    if tasks.exists():
        assert not [name for task in tasks.iterdir() if "gloo" in (name := (task / "comm").read_text())]


if __name__ == "__main__":
    run_checks(globals())
