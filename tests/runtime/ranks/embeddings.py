"""Tables whose rows are shared out over the ranks, against a whole one that sees the batch of all ranks."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import amp_runtime as amp
import torch
import torch.nn.functional as F
from amp_runtime._core.rows import table_of
from support import assert_close, assert_equal_on_ranks, gathered, run_checks
from torch import nn

RANKS = (2, 4)
ROWS, WIDTH, STEPS, EMPTY = 23, 6, 5, 2
"""``EMPTY`` is the step in which rank 1 has no samples."""

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class Net(nn.Module):
    """A table, bags of another, and a dense part."""

    def __init__(self, mode: str = "sum", sparse: bool = False, last: bool = False, weighted: bool = False) -> None:
        super().__init__()
        self.one = nn.Embedding(ROWS, WIDTH, padding_idx=3, sparse=sparse)
        self.many = nn.EmbeddingBag(
            ROWS + 4, WIDTH, mode=mode, sparse=sparse and mode != "max", include_last_offset=last, padding_idx=5
        )
        self.head = nn.Sequential(nn.Linear(2 * WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))
        self.last, self.weighted = last, weighted

    def forward(self, ids: torch.Tensor, bag: torch.Tensor, sizes: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ends = sizes.cumsum(0)
        offsets = torch.cat([ends.new_zeros(1), ends]) if self.last else ends - sizes
        bags = self.many(bag, offsets, per_sample_weights=weights if self.weighted else None)
        return self.head(torch.cat([self.one(ids), bags], 1)).squeeze(1)


def batch(step: int, rank: int) -> Batch:
    """What a rank gets: other numbers of samples, now and then none, and empty bags."""
    generator = torch.Generator().manual_seed(100 * step + rank)

    def draw(high: int, *size: int) -> torch.Tensor:
        return torch.randint(high, size, generator=generator)

    count = 0 if (step, rank) == (EMPTY, 1) else 2 + rank + step % 2
    sizes = draw(4, count)
    total = int(sizes.sum())
    weights = torch.rand(total, generator=generator)
    return draw(ROWS, count), draw(ROWS + 4, total), sizes, weights, torch.randn(count, generator=generator)


def of_all(step: int) -> Batch:
    first, *others = [batch(step, rank) for rank in range(amp.world_size())]
    return tuple(torch.cat(tensors) for tensors in zip(first, *others, strict=True))  # type: ignore[return-value]


def error(model: Any, given: Batch, count: int) -> torch.Tensor:
    """The sum of squares over the number of samples of all ranks."""
    *inputs, target = given
    output: torch.Tensor = model(*inputs)
    return (output.float() - target).square().sum() / count


Make = Callable[[Any], list[torch.optim.Optimizer]]


def by_kind(one: Callable[[Any], torch.optim.Optimizer], dense: Callable[[Any], torch.optim.Optimizer]) -> Make:
    def make(model: Any) -> list[torch.optim.Optimizer]:
        tables = [*model.one.parameters(), *model.many.parameters()]
        return [one(tables), dense(model.head.parameters())]

    return make


def adam(model: Any) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=1e-2)]


def momentum(model: Any) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)]


def begin(level: str = "O0", **options: Any) -> None:
    amp.init(level, ddp=True, **{"dtype": "bf16", **options})
    torch.manual_seed(0)


def made(model: Net, **options: Any) -> Any:
    amp.shard_embedding(model)
    assert model.one._parameters["weight"].shape[0] < ROWS  # type: ignore[union-attr]
    return amp.prepare_model(model, **options)


def steps(
    model: Any, optimizers: list[Any], alone: bool, clip: float | None = None, first: int = 0, norm: float = 2.0
) -> list[float]:
    losses = []
    for step in range(first, first + STEPS):
        whole = of_all(step)
        count = len(whole[-1])
        for optimizer in optimizers:
            optimizer.zero_grad()
        if alone:
            loss = error(model, whole, count)
            loss.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip, norm)
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
            continue
        with amp.autocast():
            loss = error(model, batch(step, amp.rank()), count) * amp.world_size()
        amp.scaler.scale(loss).backward()
        if clip is not None:
            amp.clip_grad_norm_(model.parameters(), clip, norm)
        for optimizer in optimizers:
            amp.scaler.step(optimizer)
        amp.scaler.update()
        losses.append(amp.reduce_mean(loss.item()))
    return losses


def compare(
    net: Net, make: Make, *, clip: float | None = None, tolerance: float = 1e-5, norm: float = 2.0, **options: Any
) -> tuple[Any, Any]:
    """Trains a whole model, and one whose rows are shared out."""
    reference = copy.deepcopy(net)
    model = made(net, **options)
    losses = steps(model, make(model), False, clip, norm=norm)
    assert_close(losses, steps(reference, make(reference), True, clip, norm=norm), tolerance)
    state, expected = amp.unwrap(model).state_dict(), reference.state_dict()
    assert list(state) == list(expected)
    assert_close(state.values(), expected.values(), tolerance)
    return model, reference


def check_each_kind_of_table_trains_as_one_process_with_the_batch_of_all() -> None:
    kinds: list[dict[str, Any]] = [
        {"mode": "sum"},
        {"mode": "mean", "last": True},
        {"mode": "max"},
        {"mode": "sum", "weighted": True},
    ]
    for kind in kinds:
        begin()
        compare(Net(**kind), momentum)
    begin()
    model, _ = compare(Net(), adam)
    own = sum(parameter.numel() for parameter in model.one.parameters())
    assert own == len(range(amp.rank(), ROWS, amp.world_size())) * WIDTH
    assert_equal_on_ranks(model.head.parameters())


def check_sparse_gradients_touch_only_rows_that_were_looked_up() -> None:
    for optimizer in (torch.optim.SparseAdam, torch.optim.Adagrad, torch.optim.SGD):
        begin()
        make = by_kind(lambda p, kind=optimizer: kind(p, lr=0.05), lambda p: torch.optim.Adam(p, lr=0.01))  # type: ignore[misc]
        compare(Net(sparse=True), make)
    begin()
    net = Net(sparse=True)
    model = made(net)
    error(model, batch(0, amp.rank()), 1).backward()
    gradient = net.one._parameters["weight"].grad  # type: ignore[union-attr]
    assert gradient.is_sparse
    asked = {int(i) for rank in range(amp.world_size()) for i in batch(0, rank)[0]} - {3}
    here = {int(i) * amp.world_size() + amp.rank() for i in gradient.coalesce().indices()[0]}
    assert here == {i for i in asked if i % amp.world_size() == amp.rank()}


def check_other_ways_to_average_and_to_accumulate() -> None:
    begin()
    compare(Net(), momentum, delay_allreduce=True)
    begin()
    compare(Net(), momentum, find_unused_parameters=True)
    begin()
    net = Net()
    reference = copy.deepcopy(net)
    model = made(net)
    for part in range(2):
        with amp.no_sync(model, enabled=part == 0):
            error(model, batch(part, amp.rank()), 1).backward()
        (error(reference, of_all(part), 1) / amp.world_size()).backward()
    table = table_of(net.one._parameters["weight"])
    assert table is not None
    found = [p.grad for p in model.parameters()]
    expected = [p.grad if p.dim() < 2 or p.shape[0] < ROWS else table.part_of(p.grad) for p in reference.parameters()]
    assert_close(found, expected, 1e-5)


def check_a_rank_without_data_moves_no_row() -> None:
    begin()
    torch.manual_seed(0)
    # One sample more than a batch each, so that all but one rank have no data in the last step.
    samples = 2 * amp.world_size() + 1
    data = torch.utils.data.TensorDataset(torch.arange(samples), torch.zeros(samples))
    loader = amp.prepare_loader(torch.utils.data.DataLoader(data, batch_size=2), uneven="join")
    net = nn.Embedding(ROWS, 2, sparse=True)
    reference = copy.deepcopy(net)
    amp.shard_embedding(net)
    model = amp.prepare_model(nn.Sequential(net, nn.Linear(2, 1)))
    optimizer = torch.optim.SparseAdam(net.parameters(), lr=0.1)
    seen = []
    for ids, _ in loader:
        optimizer.zero_grad()
        amp.scaler.scale(model(ids).square().mean()).backward()
        gradient = net._parameters["weight"].grad.coalesce()  # type: ignore[union-attr]
        moved = {int(i) * amp.world_size() + amp.rank() for i in gradient.indices()[0]}
        own = set() if amp.shadowing() else set(ids.tolist())
        seen.append(amp.shadowing())
        assert set().union(*gathered(moved)) == set().union(*gathered(own))
        amp.scaler.step(optimizer)
        amp.scaler.update()
    assert any(any(of_rank) for of_rank in gathered(seen))
    assert not torch.equal(net.state_dict()["weight"], reference.weight)


def check_clipping_counts_each_row_once() -> None:
    for level, sparse, norm in (("O0", False, 2.0), ("O0", False, float("inf")), ("O0", False, 1.0)):
        begin(level)
        compare(Net(sparse=sparse), momentum, clip=0.05, norm=norm)
    begin()
    net = Net(sparse=True)
    reference = copy.deepcopy(net)
    model = made(net)
    for _ in range(2):  # accumulated, so that rows occur twice
        error(model, batch(0, amp.rank()), 1).backward()
        (error(reference, of_all(0), 1) / amp.world_size()).backward()
    true = [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in reference.parameters() if p.grad is not None]
    norm = amp.clip_grad_norm_(model.parameters(), 0.01)
    assert_close([norm], [torch.cat([gradient.flatten() for gradient in true]).norm()], 1e-5)
    assert len({float(value) for value in gathered(norm.item())}) == 1
    assert_close([amp.clip_grad_norm_(model.parameters(), 1.0)], [torch.tensor(0.01)], 1e-4)


def check_mixed_precision_and_a_loss_scale() -> None:
    begin("O1")
    net = Net()
    assert made(net).one(torch.tensor([1, 2])).dtype is torch.float32
    for dtype in ("bf16", "fp16"):
        begin("O1", dtype=dtype, init_scale=256.0)
        compare(Net(), momentum, clip=0.5, tolerance=2e-2)
        begin("O1", dtype=dtype, init_scale=256.0)
        adagrad = by_kind(lambda p: torch.optim.Adagrad(p, lr=0.05), lambda p: torch.optim.SGD(p, lr=0.1))
        compare(Net(sparse=True), adagrad, tolerance=2e-2)
        assert amp.scaler.skipped_steps == 0


def check_an_infinity_on_one_owner_is_skipped_by_all() -> None:
    begin("O1", dtype="fp16", init_scale=256.0)
    net = Net()
    model = made(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        loss = error(model, batch(0, amp.rank()), 1) + (net.one(torch.tensor([1])) * factor).sum()  # a row of rank 1
        amp.scaler.scale(loss).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
        unchanged = all(map(torch.equal, before, model.parameters()))
        assert unchanged == (factor != 1.0)
    assert gathered((amp.scaler.get_scale(), amp.scaler.skipped_steps)) == [(128.0, 1)] * amp.world_size()


def check_a_frozen_table_stays_as_it_is() -> None:
    begin()
    net = Net()
    net.one.weight.requires_grad_(False)
    before = net.one.weight.detach().clone()
    model, _ = compare(net, lambda m: [torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.1)])
    assert torch.equal(amp.unwrap(model).state_dict()["one.weight"], before)
    begin()
    alone = amp.shard_embedding(nn.Embedding(ROWS, 2))  # nothing else trains
    assert amp.prepare_model(nn.Sequential(alone))(torch.tensor([1])).requires_grad


def checkpoint(name: str) -> str:
    return str(Path(os.environ["CHECK_DIR"]) / f"{name}{amp.world_size()}.pt")


def check_a_checkpoint_is_that_of_a_whole_model_and_goes_both_ways() -> None:
    for sparse, folder in ((False, False), (True, True)):
        begin()
        kinds: Make = by_kind(lambda p: torch.optim.SparseAdam(p, lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01))
        make = kinds if sparse else adam
        net = Net(sparse=sparse)
        reference = copy.deepcopy(net)
        model = made(net)
        optimizers, others = make(model), make(reference)
        ema = amp.EMA(model, 0.5)
        average = amp.EMA(reference, 0.5)
        steps(model, optimizers, False)
        steps(reference, others, True)
        for one in (ema, average):
            one.update()
        path = checkpoint(f"run{sparse}")
        amp.save_checkpoint(path, sharded=folder, model=model, optimizers=optimizers, ema=ema)
        fresh = Net(sparse=sparse)  # whole, and then out of the file of a whole one into rows
        for optimizer, of_reference in zip(optimizers, others, strict=True):
            found, expected = optimizer.state_dict(), of_reference.state_dict()
            assert found["state"].keys() == expected["state"].keys()
            for number, held in expected["state"].items():
                for key, value in held.items():
                    assert_close([found["state"][number][key]], [value], 1e-5)
        if not folder:
            saved = torch.load(path)
            fresh.load_state_dict(saved["model"])
            again = make(fresh)
            again[0].load_state_dict(saved["optimizers"][0])
            losses = steps(fresh, again, True, first=STEPS)
            assert_close(saved["ema"].values(), average.state_dict().values(), 1e-5)
        else:
            losses = steps(reference, others, True, first=STEPS)
        begin()
        torch.manual_seed(5)
        other = made(Net(sparse=sparse))
        loaded = make(other)
        second = amp.EMA(other, 0.5)
        amp.load_checkpoint(path, model=other, optimizers=loaded, ema=second)
        assert_close(second.state_dict().values(), average.state_dict().values(), 1e-5)
        assert_close(steps(other, loaded, False, first=STEPS), losses, 1e-5)
        full = amp.full_state_dict(other)
        assert (full["one.weight"] is None) == (amp.rank() > 0)


def check_an_average_of_the_weights() -> None:
    begin()
    model, reference = compare(Net(), adam)
    ema, expected = amp.EMA(model, 0.5), amp.EMA(reference, 0.5)
    with torch.no_grad():
        for parameter in (*model.parameters(), *reference.parameters()):
            parameter.add_(1.0)
    ema.update()
    expected.update()
    assert_close(ema.state_dict().values(), expected.state_dict().values(), 1e-5)
    given = batch(0, 0)
    with ema.applied(), expected.applied():
        assert_close([error(model, given, 1)], [error(reference, given, 1)], 1e-5)
    assert_close([error(ema.module, given, 1)], [error(expected.module, given, 1)], 1e-5)


def check_a_copy_looks_up_in_its_own_rows() -> None:
    begin()
    net = Net()
    model = made(net)
    copied = copy.deepcopy(amp.unwrap(model))
    steps(model, adam(model), False)
    assert_close(copied.state_dict().values(), made(_seeded()).state_dict().values(), 0.0)


def _seeded() -> Net:
    torch.manual_seed(0)
    return Net()


# ---- what is refused ----------------------------------------------------------------------------------------------


def message(call: Callable[[], Any], kind: type[BaseException]) -> str:
    """What a call says, which has to be the same on all ranks: none may be left waiting."""
    try:
        call()
    except kind as found:
        told = gathered(str(found))
        assert len(set(told)) == 1, told
        return str(found)
    raise AssertionError("nothing was refused")


def check_a_wrong_number_on_one_rank_is_told_by_all() -> None:
    begin()
    table = amp.shard_embedding(nn.Embedding(ROWS, 2))
    bad = torch.tensor([1, ROWS + 7] if amp.rank() == 1 else [1, 2])
    told = message(lambda: table(bad), IndexError)
    assert told == "rank 1 looked up row 30 of Embedding(23, 2), which has 23 rows; allowed: 0 to 22"
    bad = torch.tensor([-1] if amp.rank() == 0 else [1])
    assert "rank 0 looked up row -1" in message(lambda: table(bad), IndexError)
    assert "torch.float32 to look up" in message(lambda: table(torch.ones(2)), ValueError)
    assert table(torch.tensor([1, 2])).shape == (2, 2)  # and all go on
    try:
        table(torch.ones(2) if amp.rank() == 1 else torch.tensor([1]))
    except (ValueError, RuntimeError) as found:
        assert ("rank 1 got an input" in str(found)) == (amp.rank() != 1)
    other = amp.shard_embedding(nn.Embedding(ROWS, 2))
    mixed = other if amp.rank() == 1 else table
    try:
        mixed(torch.tensor([1]))
    except RuntimeError as found:
        assert "rank 1 looks up another table than rank 0" in str(found)
    else:
        raise AssertionError("ranks in other tables")
    bags = amp.shard_embedding(nn.EmbeddingBag(ROWS, 2))
    assert "offsets for a matrix" in message(lambda: bags(torch.tensor([1])), ValueError)


def check_a_state_of_another_shape_is_told_by_all() -> None:
    begin()
    model = made(Net())
    path = checkpoint("other")
    if amp.is_main_process():
        torch.save({**_seeded().state_dict(), "one.weight": torch.zeros(ROWS - 1, WIDTH)}, path)
    amp.barrier()
    assert "other shape: one.weight" in message(lambda: amp.load_checkpoint(path, model=model), RuntimeError)
    state = {name: value for name, value in _seeded().state_dict().items() if name != "one.weight"}
    assert "one.weight" in message(lambda: model.load_state_dict(state), RuntimeError)
    assert_equal_on_ranks([model.state_dict()["one.weight"]])


def check_tables_that_cannot_be_shared_out() -> None:
    begin()

    def told(make: Callable[[], nn.Module], kind: type[BaseException] = ValueError) -> str:
        return message(lambda: amp.shard_embedding(make()), kind)

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(ROWS, 2)
            self.out = nn.Linear(2, ROWS)
            self.out.weight = self.table.weight

    class Own(nn.Embedding):
        pass

    assert "its weight used elsewhere too" in told(Tied)
    tied = Tied()
    amp.shard_embedding(tied.table)
    assert "before amp.shard_embedding sharded it" in message(lambda: amp.prepare_model(tied), RuntimeError)
    assert "with 1 rows for" in told(lambda: nn.Embedding(1, 2))
    assert "max_norm=1.0" in told(lambda: nn.Embedding(ROWS, 2, max_norm=1.0))
    assert "scale_grad_by_freq" in told(lambda: nn.Embedding(ROWS, 2, scale_grad_by_freq=True))
    assert "the class Own" in told(lambda: Own(ROWS, 2))
    assert "torch.bfloat16" in told(lambda: nn.Embedding(ROWS, 2).bfloat16())
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    assert "SGD of this rank holds already" in told(lambda: net, RuntimeError)
    del optimizer
    net = Net()
    prepared = amp.prepare_model(net)
    assert "has prepared already" in told(lambda: amp.unwrap(prepared), RuntimeError)
    try:
        amp.shard_embedding(nn.Embedding(ROWS + (amp.rank() == 1), 2))
    except RuntimeError as found:
        assert "allowed: the same" in str(found)
    else:
        raise AssertionError("ranks with other tables")
    small = nn.Embedding(ROWS, 2)
    assert amp.shard_embedding(small, min_rows=ROWS + 1) is small and type(small) is nn.Embedding
    for options in ({"combine_grad": True}, {"parallel": "fsdp", "ddp": None}):
        given = {"ddp": True, **options}
        amp.init("O1", **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
        assert "amp.init(" in told(lambda: nn.Embedding(ROWS, 2))
        begin(combine_grad=False, parallel="ddp")
    amp.init("O2", ddp=True)
    assert "at O2; allowed: O0, O1" in told(lambda: nn.Embedding(ROWS, 2))


def check_what_would_go_wrong_in_silence_is_refused() -> None:
    begin()
    net = Net()
    model = made(net)
    assert "the weight of Net.one was asked for" in message(
        lambda: F.linear(torch.ones(1, 6), net.one.weight), RuntimeError
    )
    assert "cannot be pickled" in message(lambda: pickle.dumps(net), RuntimeError)
    assert "that is sharded" in message(lambda: amp.inference(model), RuntimeError)
    error(model, batch(0, amp.rank()), 1).backward()
    wrapped = amp.optim.LARC(torch.optim.SGD(model.parameters(), lr=0.1))
    for optimizer in (amp.optim.LAMB(model.parameters(), lr=0.1), wrapped):
        assert "takes a norm or a product" in message(lambda o=optimizer: amp.scaler.step(o), RuntimeError)  # type: ignore[misc]
    lamb = amp.optim.LAMB(model.parameters(), lr=0.1)
    assert "takes a norm or a product" in message(lamb.step, RuntimeError)
    lbfgs = torch.optim.LBFGS(model.parameters())
    assert message(lambda: amp.scaler.step(lbfgs, lambda: error(model, batch(0, amp.rank()), 1)), RuntimeError)
    with amp.main_process_first():
        try:
            net.one(torch.tensor([1]))
        except RuntimeError as found:
            assert "main_process_first" in str(found)
    before = amp.shard_embedding(Net())
    begin(parallel="fsdp")
    assert "allowed: one of the two" in message(lambda: amp.prepare_model(before), ValueError)
    begin(parallel="ddp")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(4)))
    assert "a model is sharded" in message(lambda: amp.share_evaluation(loader), RuntimeError)


if __name__ == "__main__":
    run_checks(globals())
