"""Two ranks: models, gradients, loaders, overflow, output."""

from __future__ import annotations

import builtins
import contextlib
import copy
import io
import logging
import os
import pickle
import random
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import amp_runtime as amp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from support import assert_close, assert_equal_on_ranks, gathered, run_checks
from torch import nn
from torch.utils import data


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dim = 5  # also a name of torch's DDP
        self.encoder = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
        self.head = nn.Linear(5, 3)
        self.calls = 0

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.encoder(x)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.encode(x)), y)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encode(x))


def twin(kind: Any = Net, seed: int = 3) -> tuple[Any, Any]:
    """Two models with the same weights: one to prepare, one to train alone on the whole batch."""
    torch.manual_seed(seed)
    model = kind()
    return model, copy.deepcopy(model)


def batches(steps: int, seed: int = 11) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(steps)
    ]


def mine(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[amp.rank() :: 2]


def check_environment() -> None:
    assert amp.world_size() == 2
    assert amp.rank() == amp.local_rank() == int(os.environ["RANK"])
    assert amp.is_main_process() is (amp.rank() == 0)
    assert amp.device("cuda:0" if torch.cuda.is_available() else "cpu").type in ("cpu", "cuda")
    assert amp.device("cpu") == torch.device("cpu")


def check_random_states_agree_after_init() -> None:
    # The ranks seeded themselves differently before init; see main().
    first, second = gathered((torch.rand(3).tolist(), random.random()))
    assert first == second


def check_print_and_logging_are_silent_on_rank_1() -> None:
    terminal, sys.stdout = sys.stdout, io.StringIO()
    try:
        builtins.print("ordinary")
        print("forced", force=True)
        printed = sys.stdout.getvalue()
    finally:
        sys.stdout = terminal
    own = io.StringIO()
    print("kept", file=own)
    assert own.getvalue() == "kept\n"
    assert printed == ("ordinary\nforced\n" if amp.rank() == 0 else "forced\n")
    assert logging.getLogger("x").isEnabledFor(logging.WARNING)
    assert logging.getLogger("x").isEnabledFor(logging.INFO) is False or amp.rank() == 0
    assert (logging.root.manager.disable >= logging.INFO) is (amp.rank() == 1)


def check_stdout_is_silent_on_rank_1() -> None:
    quiet = amp.rank() == 1
    with tempfile.TemporaryFile("w+") as file:
        terminal = os.dup(1)
        sys.stdout.flush()
        os.dup2(file.fileno(), 1)
        try:
            assert sys.stdout.write("written\n") == 8
            sys.stdout.writelines(["a\n", "b\n"])
            print("ordinary", file=sys.stdout)
            print("original", file=sys.__stdout__)
            print("forced", force=True)
            print("forced too", force=True, file=sys.stdout, flush=True)
        finally:
            os.dup2(terminal, 1)
            os.close(terminal)
        file.seek(0)
        found = file.read().split("\n")
    assert found == [*([] if quiet else ["written", "a", "b", "ordinary", "original"]), "forced", "forced too", ""]
    assert sys.stdout.fileno() == 1 and sys.stdout.encoding and sys.stdout.buffer and not sys.stdout.closed
    assert (sys.stdout is sys.__stdout__) is not quiet
    with contextlib.redirect_stdout(io.StringIO()) as own:
        sys.stdout.write("kept")
    assert own.getvalue() == "kept"


def check_main_process_goes_first() -> None:
    path = Path(os.environ["CHECK_DIR"]) / "downloaded"
    with amp.main_process_first(), amp.main_process_first():
        found = path.exists()
        path.touch()
    assert found is (amp.rank() == 1)


def check_reductions() -> None:
    value = torch.tensor([1.0, 3.0]) * (amp.rank() + 1)
    assert amp.reduce_mean(value).tolist() == [1.5, 4.5]
    assert value.tolist() == [1.0 * (amp.rank() + 1), 3.0 * (amp.rank() + 1)], "the argument is left alone"
    assert amp.reduce_mean(float(amp.rank())) == 0.5
    total = amp.reduce_sum(amp.rank() + 1)
    assert total == 3 and isinstance(total, int)


def check_on_main_makes_a_stand_in_on_rank_1() -> None:
    class Writer:
        def __init__(self, path: str) -> None:
            self.seen: list[float] = []

        def add(self, value: float) -> None:
            self.seen.append(value)

    writer = amp.on_main(Writer)("logs")
    writer.add(1.0)
    if amp.rank() == 0:
        assert writer.seen == [1.0]
        return
    assert not isinstance(writer, Writer)
    with writer as w:
        w.a.b["c"](1).d = 2
    assert list(writer.items()) == [] and bool(writer)
    assert bool(pickle.loads(pickle.dumps(writer)))


def check_a_writer_tells_the_folder_that_it_is_given() -> None:
    class Writer:
        def __init__(self, log_dir: str | None = None, comment: str = "") -> None:
            self.log_dir = log_dir or "made up"

    assert amp.on_main(Writer)("logs").log_dir == "logs"
    assert amp.on_main(Writer)(comment="x", log_dir="logs").log_dir == "logs"
    if amp.rank():
        assert pickle.loads(pickle.dumps(amp.on_main(Writer)("logs"))).get_logdir() == "logs"
        assert str(amp.on_main(Writer)().log_dir) == "<nothing on this rank>"
        assert f"{amp.on_main(Writer)().left:.2f}" == "<nothing on this rank>"


def check_a_writer_tells_the_folder_that_it_makes_up() -> None:
    class Writer:
        def __init__(self, comment: str = "", fails: bool = False) -> None:
            if fails:
                raise ValueError(comment)
            self.log_dir = f"made by {amp.rank()}{comment}"

    class WriterOfX:
        def __init__(self, logdir: str | None = None) -> None:
            self.logdir = logdir or f"made by {amp.rank()}"

    writer = amp.on_main(Writer, share_folder=True)("!")
    assert writer.log_dir == "made by 0!"
    assert isinstance(writer, Writer) == (amp.rank() == 0)
    assert amp.on_main(WriterOfX, share_folder=True)().logdir == "made by 0"
    assert amp.on_main(WriterOfX, share_folder=True)("given").logdir == "given"
    with contextlib.suppress(ValueError):  # rank 0 alone sees it, and the others do not wait for it
        amp.on_main(Writer, share_folder=True)(fails=True)
        assert amp.rank()
    assert_equal_on_ranks(torch.ones(1))


def check_files_stay_open_on_rank_0_only() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.txt")
        file = amp.on_main(open)(path, mode="x", newline="")
        handler = amp.on_main(logging.FileHandler)(Path(folder, "run.log"))
        log = logging.getLogger("files")
        log.addHandler(handler)
        log.warning("seen")
        torch.save(torch.ones(2), amp.on_main(open)(Path(folder, "ones.pt"), "wb"))
        with file:
            print("line", file=file)
            assert file.writable() and file.fileno() >= 0
        made = sorted(item.name for item in Path(folder).iterdir())
        assert made == (["log.txt", "ones.pt", "run.log"] if amp.rank() == 0 else [])
        handler.close()
        log.removeHandler(handler)


def check_weights_come_from_rank_0() -> None:
    torch.manual_seed(100 + amp.rank())
    model = nn.Sequential(nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last), nn.BatchNorm2d(3))
    model[1].running_mean.fill_(amp.rank())
    model.register_buffer("mask", torch.tensor([amp.rank() == 0, False]))
    before = list(model.parameters())
    prepared = amp.prepare_model(model)
    assert all(a is b for a, b in zip(before, prepared.parameters(), strict=True))
    assert_equal_on_ranks([*model.parameters(), *model.buffers()])
    assert model.mask.tolist() == [True, False]
    assert len(prepared) == 2 and prepared[1] is model[1]


def _train(step: Any, model: Any, optimizer: Any, steps: int, whole: bool) -> None:
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss = step(model, *((x, y) if whole else (mine(x), mine(y))))
        if whole:  # plain torch: the scaler refuses models that were not prepared
            loss.backward()
            optimizer.step()
            continue
        amp.scaler.scale(loss).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()


def _assert_like_one_process(step: Any, **options: Any) -> None:
    model, alone = twin()
    prepared = amp.prepare_model(model, **options)
    _train(step, prepared, torch.optim.SGD(prepared.parameters(), lr=0.5, momentum=0.9), 5, whole=False)
    _train(step, alone, torch.optim.SGD(alone.parameters(), lr=0.5, momentum=0.9), 5, whole=True)
    assert_equal_on_ranks(model.parameters())
    assert_close(model.parameters(), alone.parameters())


@contextlib.contextmanager
def references_allowed() -> Any:
    """Lets the scaler step what no rank shares: the single-process references of these checks."""
    from amp_runtime._scaling import scaler as scaler_module

    guard, scaler_module._require_prepared = scaler_module._require_prepared, lambda optimizer: None
    try:
        yield
    finally:
        scaler_module._require_prepared = guard


def check_a_model_that_was_not_prepared_is_refused() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    try:
        amp.scaler.step(optimizer)
    except RuntimeError as error:
        assert "no prepared model" in str(error)
    else:
        raise AssertionError("a model that would differ on each rank was stepped")


def check_two_ranks_equal_one_process_with_the_whole_batch() -> None:
    _assert_like_one_process(lambda m, x, y: F.cross_entropy(m(x), y))


def check_another_method_than_forward_synchronises() -> None:
    _assert_like_one_process(lambda m, x, y: m.loss(x, y))


def check_submodules_called_from_outside_synchronise() -> None:
    _assert_like_one_process(lambda m, x, y: F.cross_entropy(m.head(m.encoder(x)), y))


def check_delayed_averaging_equals_one_process() -> None:
    _assert_like_one_process(lambda m, x, y: F.cross_entropy(m(x), y), delay_allreduce=True)


def check_two_backward_passes_of_two_forwards_synchronise() -> None:
    model, alone = twin()
    prepared = amp.prepare_model(model)
    for m, cut in ((prepared, mine), (alone, lambda t: t)):
        (x, y), (u, v) = batches(2)
        first, second = F.cross_entropy(m(cut(x)), cut(y)), F.cross_entropy(m(cut(u)), cut(v))
        first.backward()
        second.backward()
    assert_close([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])


def check_accumulation_without_sync() -> None:
    model, alone = twin()
    prepared = amp.prepare_model(model)
    (x, y), (u, v) = batches(2)
    with prepared.no_sync():
        F.cross_entropy(prepared(mine(x)), mine(y)).backward()
    local = gathered(model.head.weight.grad.clone())
    assert not torch.equal(local[0], local[1])
    F.cross_entropy(prepared(mine(u)), mine(v)).backward()
    for a, b in ((x, y), (u, v)):
        F.cross_entropy(alone(a), b).backward()
    assert_close([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])


def check_freezing_and_unfreezing_after_preparation() -> None:
    model, alone = twin()
    for m in (model, alone):
        m.encoder.requires_grad_(False)
    prepared = amp.prepare_model(model)
    step = lambda m, x, y: F.cross_entropy(m(x), y)  # noqa: E731
    for m, whole in ((prepared, False), (alone, True)):
        optimizer = torch.optim.SGD(m.parameters(), lr=0.5)
        _train(step, m, optimizer, 3, whole)
        m.encoder.requires_grad_(True)
        _train(step, m, optimizer, 3, whole)
    assert_equal_on_ranks(model.parameters())
    assert_close(model.parameters(), alone.parameters())


def check_a_discriminator_frozen_for_the_generators_step() -> None:
    generators, critics = twin(lambda: nn.Linear(6, 6), 1), twin(Critic, 2)
    del critics[0].extra, critics[0].never, critics[1].extra, critics[1].never
    g, d = amp.prepare_model(generators[0]), amp.prepare_model(critics[0])

    def train(g: Any, d: Any, cut: Any) -> None:
        optimizer = torch.optim.SGD([*g.parameters(), *d.parameters()], lr=0.1)
        for x, _ in batches(3):
            optimizer.zero_grad()
            d.requires_grad_(False)
            d(g(cut(x))).mean().backward()
            d.requires_grad_(True)
            (d(cut(x)).mean() - d(g(cut(x)).detach()).mean()).backward()
            optimizer.step()

    train(g, d, mine)
    train(generators[1], critics[1], lambda t: t)
    assert_equal_on_ranks([*g.parameters(), *d.parameters()])
    assert_close([*g.parameters(), *d.parameters()], [*generators[1].parameters(), *critics[1].parameters()], 1e-5)


def check_unused_parameters_are_found() -> None:
    for step in (lambda m, x, y: m(x).square().mean(), lambda m, x, y: m.twice(x).square().mean()):
        model, alone = twin(Critic)
        prepared = amp.prepare_model(model, find_unused_parameters=True)
        _train(step, prepared, torch.optim.SGD(prepared.parameters(), lr=0.1), 3, whole=False)
        _train(step, alone, torch.optim.SGD(alone.parameters(), lr=0.1), 3, whole=True)
        assert_equal_on_ranks(model.parameters())
        assert_close(model.parameters(), alone.parameters())


def check_a_loader_made_while_the_ranks_take_turns() -> None:
    torch.manual_seed(4)
    with amp.main_process_first():
        loader = amp.prepare_loader(data.DataLoader(Numbers(8), batch_size=2, shuffle=True))
    one, two = flat(epoch_of(loader))
    assert sorted(one + two) == list(range(8))


def check_the_wrapper_looks_like_the_model() -> None:
    model, alone = twin()
    prepared = amp.prepare_model(model)
    assert amp.prepare_model(prepared) is prepared and amp.prepare_model(model) is prepared
    assert amp.unwrap(prepared) is model is prepared.module
    assert prepared.dim == 5 and prepared.encoder is model.encoder
    prepared.note = "written"
    assert model.note == "written"
    assert [n for n, _ in prepared.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert prepared.eval() is prepared and not model.training and not model.head.training
    assert prepared.train() is prepared and model.training and prepared.training
    assert prepared.to("cpu") is prepared
    assert list(prepared.state_dict()) == list(alone.state_dict())
    prepared.load_state_dict({f"module.{k}": v + 1 for k, v in alone.state_dict().items()})
    assert torch.equal(model.head.weight, alone.head.weight + 1)
    saved = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.save(prepared, saved)
    loaded = torch.load(io.BytesIO(saved.getvalue()), weights_only=False)
    assert type(loaded) is Net and type(copy.deepcopy(prepared)) is Net
    outer = nn.Sequential(prepared, nn.Linear(3, 1))
    assert "0.head.weight" in outer.state_dict()
    with torch.no_grad():
        prepared.calls = 0
        prepared.encode(torch.zeros(1, 6))
        assert prepared.calls == 1
    try:
        prepared.nothing_of_this_name  # noqa: B018
    except AttributeError as error:
        assert "nothing_of_this_name" in str(error)
    else:
        raise AssertionError("no AttributeError")


def check_the_names_of_data_parallel_are_kept() -> None:
    plain, alone = twin()
    model = amp.prepare_model(amp.keep_module_prefix(plain))
    assert isinstance(model, nn.DataParallel) and amp.unwrap(model) is plain
    assert list(model.state_dict()) == [f"module.{name}" for name in alone.state_dict()]
    assert list(model.module.state_dict()) == list(alone.state_dict())
    assert [name for name, _ in copy.deepcopy(model).named_parameters()] == list(dict(model.named_parameters()))
    x, y = batches(1)[0]
    F.cross_entropy(model(mine(x)), mine(y)).backward()
    F.cross_entropy(alone(x), y).backward()
    for own, whole in zip(model.parameters(), alone.parameters(), strict=True):
        assert_close(own.grad, whole.grad)
    model.load_state_dict(nn.DataParallel(alone).state_dict())
    assert_equal_on_ranks(model.parameters())


def check_rank_0_may_evaluate_alone() -> None:
    model, _ = twin()
    prepared = amp.prepare_model(model)
    _train(lambda m, x, y: F.cross_entropy(m(x), y), prepared, torch.optim.SGD(model.parameters(), 0.1), 1, False)
    if amp.rank() == 0:
        with torch.no_grad():
            assert prepared(torch.zeros(2, 6)).shape == (2, 3)
        assert prepared.encode(torch.zeros(2, 6)).detach().shape == (2, 5)
    amp.barrier()
    _train(lambda m, x, y: F.cross_entropy(m(x), y), prepared, torch.optim.SGD(model.parameters(), 0.1), 2, False)
    assert_equal_on_ranks(model.parameters())


def check_a_model_without_trainable_parameters_is_not_wrapped() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    assert amp.prepare_model(frozen) is frozen
    bare = nn.ReLU()
    assert amp.prepare_model(bare) is bare


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, momentum=None), nn.ReLU())
        self.flat = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.flat(self.block(x).mean((2, 3))))


def check_synchronised_batch_norm_equals_the_full_batch() -> None:
    model, alone = twin(Conv)
    layers = list(model.block)
    prepared = amp.prepare_model(model)
    assert all(a is b for a, b in zip(layers, model.block, strict=True))
    assert isinstance(model.block[1], nn.BatchNorm2d) and isinstance(model.block[1], amp.SyncBatchNorm)
    generator = torch.Generator().manual_seed(0)
    for cut in (2, 5, 6, 1):  # uneven parts; six of six leaves rank 1 without any
        x = torch.randn(6, 2, 6, 6, generator=generator) * 3 + 1
        part = x[:cut] if amp.rank() == 0 else x[cut:]
        model.zero_grad(), alone.zero_grad()
        out = prepared(part)
        (out.square().sum() * 2).backward()  # DDP divides by the number of ranks
        expected = alone(x)
        expected.square().sum().backward()
        assert_close([out], [expected[:cut] if amp.rank() == 0 else expected[cut:]], 1e-5)
        assert_close([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()], 2e-4)
    assert_close(model.buffers(), alone.buffers(), 1e-5)
    prepared.eval(), alone.eval()
    x = torch.randn(3, 2, 6, 6, generator=generator)
    assert_close([prepared(x)], [alone(x)], 1e-5)


def check_batch_norm_can_be_differentiated_twice() -> None:
    model, alone = twin(Conv)
    amp.prepare_model(model, delay_allreduce=True)
    assert model.block[1].twice_differentiable and model.flat.twice_differentiable
    inputs = torch.randn(6, 2, 6, 6, generator=torch.Generator().manual_seed(0))

    def train(m: Any, cut: Any, step: Any) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
        penalties = []
        for _ in range(3):
            optimizer.zero_grad()
            x = cut(inputs).clone().requires_grad_()
            out = m(x)
            (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
            penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
            (out.mean() + penalty).backward()
            step(optimizer)
            penalties.append(amp.reduce_mean(penalty.detach()) if cut is mine else penalty.detach())
        return penalties

    penalties = train(model, mine, amp.scaler.step)
    expected = train(alone, lambda t: t, lambda optimizer: optimizer.step())
    assert_equal_on_ranks(model.parameters())
    assert_close(penalties, expected, 1e-4)
    assert_close(model.parameters(), alone.parameters(), 1e-4)
    other = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    amp.prepare_model(other)
    assert not other[1].twice_differentiable, "torch's kernels where nothing asks for more"


def check_batch_norm_can_be_left_alone_and_odd_ones_are_named() -> None:
    class Odd(nn.BatchNorm1d):
        pass

    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    amp.prepare_model(model, sync_bn=False)
    assert type(model[1]) is nn.BatchNorm1d
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        amp.prepare_model(nn.Sequential(nn.Linear(2, 2), Odd(2)))
    assert any("Odd" in str(w.message) for w in caught)


class Critic(nn.Module):
    """Has a part that is used in some passes only, and one that never is."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.extra = nn.Linear(4, 4)
        self.never = nn.Linear(1, 1)
        self.out = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, extra: bool = False) -> torch.Tensor:
        h = torch.tanh(self.body(x))
        return self.out(self.extra(h) if extra else h)

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self(x) * 2


def check_gan_with_delayed_averaging_equals_one_process() -> None:
    pairs = []
    for seed, kind in ((1, lambda: nn.Linear(6, 6)), (2, Critic)):
        pairs.append(twin(kind, seed))
    (generator, generator_alone), (critic, critic_alone) = pairs
    amp.prepare_model(generator, delay_allreduce=True), amp.prepare_model(critic, delay_allreduce=True)

    def train(g: Any, d: Any, cut: Any) -> None:
        g_optimizer = torch.optim.Adam(g.parameters(), lr=0.01)
        d_optimizer = torch.optim.Adam(d.parameters(), lr=0.01)
        for number, (x, _) in enumerate(batches(4)):
            fake = g(cut(x).flip(1))
            d_optimizer.zero_grad()
            amp.scaler.scale(F.softplus(-d(cut(x), extra=number > 1)).mean()).backward()
            amp.scaler.scale(F.softplus(d(fake.detach())).mean()).backward()
            amp.scaler.unscale_(d_optimizer)
            torch.nn.utils.clip_grad_norm_(d.parameters(), 0.2)
            amp.scaler.step(d_optimizer)
            g_optimizer.zero_grad()
            amp.scaler.scale(F.softplus(-d(fake)).mean()).backward()
            amp.scaler.step(g_optimizer)
            amp.scaler.step(g_optimizer)  # a second step with the same gradients
            amp.scaler.update()

    train(generator, critic, mine)
    with references_allowed():
        train(generator_alone, critic_alone, lambda t: t)
    both = [*generator.parameters(), *critic.parameters()]
    assert critic.never.weight.grad is None
    assert_equal_on_ranks(both)
    assert_close(both, [*generator_alone.parameters(), *critic_alone.parameters()], 1e-5)


def check_delayed_gradients_on_one_rank_only() -> None:
    model, _ = twin(Critic)
    amp.prepare_model(model, delay_allreduce=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 6)
    for _ in range(2):  # gradients kept over a step are averaged again, which must not change them
        amp.scaler.scale(model(x, extra=amp.rank() == 1).sum()).backward()
        amp.scaler.step(optimizer)
    assert model.extra.weight.grad is not None and model.never.weight.grad is None
    assert_equal_on_ranks(model.parameters())


def check_delayed_sparse_gradients_stay_sparse() -> None:
    torch.manual_seed(0)
    table = amp.prepare_model(nn.Embedding(10, 3, sparse=True), delay_allreduce=True)
    optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=0.1)
    before = table.weight.detach().clone()
    amp.scaler.scale(table(torch.tensor([amp.rank(), 7])).sum()).backward()
    amp.scaler.step(optimizer)
    changed = (table.weight != before).any(1).nonzero().flatten().tolist()
    assert changed == [0, 1, 7]
    assert_equal_on_ranks(table.parameters())


def check_collectives_are_saved_where_nothing_is_new() -> None:
    model, _ = twin()
    amp.prepare_model(model, delay_allreduce=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count = 0
    original = dist.all_reduce

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return original(*args, **kwargs)

    dist.all_reduce = counting
    try:
        for x, y in batches(3):
            amp.scaler.scale(F.cross_entropy(model(mine(x)), mine(y))).backward()
        assert count == 0, "accumulation must not communicate"
        amp.scaler.unscale_(optimizer)
        once = count
        amp.scaler.unscale_(optimizer)
        amp.scaler.step(optimizer)
        amp.scaler.step(optimizer)
        assert once > 0 and count == once
    finally:
        dist.all_reduce = original
    assert_equal_on_ranks(model.parameters())


# -- loaders --


class Numbers(data.Dataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def seen(loader: Any) -> list[list[int]]:
    return [[int(v) for v in batch] for batch in loader]


def epoch_of(loader: Any) -> list[list[list[int]]]:
    return gathered(seen(loader))


def flat(parts: list[list[list[int]]]) -> list[list[int]]:
    return [[v for batch in part for v in batch] for part in parts]


def check_shuffled_loader_has_disjoint_parts_and_new_orders() -> None:
    torch.manual_seed(amp.rank())  # a script that seeds by rank must still get disjoint parts
    original = data.DataLoader(Numbers(21), batch_size=4, shuffle=True, drop_last=False)
    loader = amp.prepare_loader(original)
    assert amp.prepare_loader(original) is loader and amp.prepare_loader(loader) is loader
    assert len(loader) == 3 and loader.dataset is original.dataset
    orders = []
    for _ in range(3):
        parts = epoch_of(loader)
        assert [len(p) for p in parts] == [3, 3]
        one, two = flat(parts)
        assert sorted({*one, *two}) == list(range(21))
        assert len({*one} & {*two}) <= 1, "only the padding is on both ranks"
        orders.append(one)
    assert orders[0] != orders[1] != orders[2]
    other = amp.prepare_loader(data.DataLoader(Numbers(21), batch_size=4, shuffle=True))
    assert flat(epoch_of(other))[0] != orders[0], "two loaders have two orders"
    first, second = gathered(torch.initial_seed())
    assert (first, second) == (0, 1), "the script's own generator is left alone"


def check_sequential_loader_keeps_its_order() -> None:
    loader = amp.prepare_loader(data.DataLoader(Numbers(6), batch_size=2))
    assert epoch_of(loader) == [[[0, 2], [4]], [[1, 3], [5]]]
    dropping = amp.prepare_loader(data.DataLoader(Numbers(7), batch_size=2), uneven="drop")
    assert epoch_of(dropping) == [[[0, 2], [4]], [[1, 3], [5]]]


class Weird(data.Sampler[int]):
    """Draws from three generators, some of it late."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Any:
        import numpy as np

        order = torch.randperm(self.size).tolist()
        random.shuffle(order)
        while order:
            yield order.pop(np.random.randint(len(order)))


def check_custom_samplers_are_shared_out() -> None:
    amp.seed_by_rank()
    sampler = Weird(301)  # longer than one chunk
    loader = amp.prepare_loader(data.DataLoader(Numbers(301), batch_size=10, sampler=sampler))
    assert len(loader) == 16
    before = torch.get_rng_state(), random.getstate()
    assert len(list(loader.sampler)) == 151
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
    first = flat(epoch_of(loader))
    torch.rand(amp.rank() + 1), random.random()  # the ranks' own streams drift apart
    second = flat(epoch_of(loader))
    for one, two in (first, second):
        assert len(one) == len(two) == 151 and sorted({*one, *two}) == list(range(301))
    assert first != second
    weighted = data.WeightedRandomSampler([0.0, 1.0, 1.0, 0.0], 9)
    one, two = flat(epoch_of(amp.prepare_loader(data.DataLoader(Numbers(4), 2, sampler=weighted))))
    assert len(one) == len(two) == 5 and {*one, *two} <= {1, 2}
    subset = data.SubsetRandomSampler([3, 5, 8, 9])
    one, two = flat(epoch_of(amp.prepare_loader(data.DataLoader(Numbers(10), 2, sampler=subset))))
    assert sorted(one + two) == [3, 5, 8, 9]


def check_samplers_that_are_put_in_count_as_distributed_ones() -> None:
    own, weighted = data.WeightedRandomSampler([1.0] * 9, 9), data.BatchSampler(Weird(9), 2, False)
    loaders = [
        amp.prepare_loader(data.DataLoader(Numbers(9), 2, **options))
        for options in ({}, {"shuffle": True}, {"sampler": Weird(9)}, {"sampler": own})
    ]
    samplers = [loader.sampler for loader in loaders]
    batches = amp.prepare_loader(data.DataLoader(Numbers(9), batch_sampler=weighted)).batch_sampler
    for sampler in (*samplers, batches):
        assert isinstance(sampler, data.DistributedSampler) and isinstance(sampler, data.distributed.DistributedSampler)
        assert (sampler.num_replicas, sampler.rank, sampler.drop_last) == (2, amp.rank(), False)
    assert [sampler.total_size for sampler in samplers] == [10] * 4
    assert isinstance(samplers[3], data.WeightedRandomSampler) and samplers[3].num_samples == 9, "as it says itself"
    assert isinstance(samplers[2], Weird) and samplers[2].size == 9 and isinstance(batches, data.BatchSampler)
    assert all(isinstance(loader.batch_sampler.sampler, data.DistributedSampler) for loader in loaders)
    endless = amp.prepare_loader(data.DataLoader(Numbers(9), sampler=iter(range(9)))).sampler
    assert isinstance(endless, data.DistributedSampler) and not hasattr(endless, "num_samples")


class Epochs(Weird):
    """A sampler with epochs of its own, which it adds to what it draws."""

    def __init__(self) -> None:
        super().__init__(100)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return (1000 * self.epoch + value for value in super().__iter__())


def check_epochs_that_a_library_sets_are_those_that_the_sampler_counts() -> None:
    for options in ({"shuffle": True}, {"sampler": Weird(100)}, {"sampler": Epochs()}):
        counting, told = (data.DataLoader(Numbers(100), 10, **options) for _ in range(2))
        counting, told = amp.prepare_loader(counting), amp.prepare_loader(told)
        seeds = [getattr(loader.sampler, "_share", loader.sampler) for loader in (counting, told)]
        seeds[1].seed = seeds[0].seed
        orders = []
        for _ in range(5):
            orders.append([value % 1000 for value in flat(epoch_of(counting))[amp.rank()]])
        for epoch, library in enumerate((True, True, False, False, True)):
            if library:
                told.sampler.set_epoch(epoch)
            drawn = flat(epoch_of(told))[amp.rank()]
            assert [value % 1000 for value in drawn] == orders[epoch], (options, epoch)
            assert told.sampler.epoch == epoch + 1 or "sampler" in options
        assert len({tuple(order) for order in orders}) == 5
        told.sampler.set_epoch(1)
        state = None
        for number, _ in enumerate(told):
            if number == 1:
                state = amp.loader_state(told)
                break
        told.sampler.set_epoch(4)
        amp.load_loader_state(told, state)
        told.sampler.set_epoch(1)  # as a library does that begins the epoch again
        rest = [v % 1000 for batch in seen(told) for v in batch]
        assert rest == orders[1][20:], (options, rest)


def check_samples_drawn_for_one_batch_stay_together() -> None:
    # Batches of two classes with three samples each, for a triplet loss; 30 samples to a class.
    drawn = [60, 61, 62, 0, 1, 2, 30, 31, 32, 63, 64, 65, 3, 4, 5, 90, 91, 92, 6, 7, 8, 66, 67, 68, 33, 34, 35]
    loader = amp.prepare_loader(data.DataLoader(Numbers(120), batch_size=6, sampler=drawn))
    one, two = epoch_of(loader)
    assert one == [drawn[:6], drawn[12:18], [33, 35]] and two == [drawn[6:12], drawn[18:24], [34, 30]]
    assert len(loader) == 3


def check_endless_samplers_stay_lazy() -> None:
    sampler = data.RandomSampler(Numbers(50), replacement=True, num_samples=int(1e10))
    loader = amp.prepare_loader(data.DataLoader(Numbers(50), batch_size=4, sampler=sampler))
    assert len(loader) == int(1e10) // 8
    iterator = iter(loader)
    one, two = gathered([next(iterator).tolist() for _ in range(3)])
    assert one != two


def check_batch_samplers_are_shared_out_by_the_batch() -> None:
    groups = [[0, 1], [2], [3, 4, 5], [6], [7, 8]]
    loader = amp.prepare_loader(data.DataLoader(Numbers(9), batch_sampler=groups))
    assert len(loader) == 3
    assert epoch_of(loader) == [[[0, 1], [3, 4, 5], [7, 8]], [[2], [6], [2]]]


def check_loader_without_batches() -> None:
    loader = amp.prepare_loader(data.DataLoader(Numbers(5), batch_size=None))
    assert gathered(list(loader)) == [[0, 2, 4], [1, 3, 0]] and len(loader) == 3


class Stream(data.IterableDataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size
        self.name = "stream"

    def __iter__(self) -> Any:
        order = torch.randperm(self.size).tolist()
        worker = data.get_worker_info()
        return iter(order if worker is None else order[worker.id :: worker.num_workers])


def check_iterable_datasets_are_shared_out_with_workers_too() -> None:
    amp.seed_by_rank()
    loader = amp.prepare_loader(data.DataLoader(Stream(11), batch_size=2))
    assert loader.dataset.name == "stream"
    one, two = flat(epoch_of(loader))
    assert len(one) == len(two) == 6 and sorted({*one, *two}) == list(range(11))
    order = one
    assert flat(epoch_of(loader))[0] != order
    workers = amp.prepare_loader(data.DataLoader(Stream(12), batch_size=2, num_workers=2))
    first = epoch_of(workers)
    assert [len(p) for p in first] == [4, 4]
    second = epoch_of(workers)
    assert first != second, "a new order also where each epoch starts new workers"


class Extended(data.DataLoader[Any]):
    def __init__(self, size: int, label: str) -> None:
        super().__init__(Numbers(size), batch_size=3, collate_fn=tuple)
        self.label = label

    def describe(self) -> str:
        return f"{self.label} {len(self)}"


def check_subclasses_of_the_loader_keep_their_class() -> None:
    original = Extended(12, "train")
    loader = amp.prepare_loader(original)
    assert type(loader) is Extended and loader.describe() == "train 2" and original.describe() == "train 4"
    assert gathered(list(loader)) == [[(0, 2, 4), (6, 8, 10)], [(1, 3, 5), (7, 9, 11)]]


def check_loader_settings_are_kept() -> None:
    generator = torch.Generator().manual_seed(5)
    original = data.DataLoader(
        Numbers(8), batch_size=2, shuffle=True, num_workers=1, prefetch_factor=3, persistent_workers=True,
        timeout=50, generator=generator, multiprocessing_context="fork", drop_last=True,
    )  # fmt: skip
    loader = amp.prepare_loader(original)
    for name in ("num_workers", "prefetch_factor", "persistent_workers", "timeout", "generator", "drop_last"):
        assert getattr(loader, name) == getattr(original, name), name
    assert loader.multiprocessing_context is original.multiprocessing_context
    for _ in range(2):
        one, two = flat(epoch_of(loader))
        assert sorted(one + two) == list(range(8))


def check_a_distributed_loader_of_the_script_is_left_alone() -> None:
    dataset = Numbers(8)
    loader = data.DataLoader(dataset, sampler=data.DistributedSampler(dataset, 2, amp.rank()))
    assert amp.prepare_loader(loader) is loader


def check_other_iterables_are_shared_out() -> None:
    batches_ = amp.prepare_loader([[1], [2], [3]])
    assert len(batches_) == 2 and epoch_of(batches_) == [[[1], [3]], [[2], [2]]]
    assert epoch_of(batches_) == [[[1], [3]], [[2], [2]]]
    assert epoch_of(amp.prepare_loader(iter([[1], [2]]))) == [[[1]], [[2]]]


# -- half precision --


def check_ranks_agree_to_skip() -> None:
    amp.init("O1", ddp=True, dtype="fp16")
    assert amp.scaler.is_enabled()
    model, _ = twin()
    amp.prepare_model(model, delay_allreduce=True)
    loose = nn.Parameter(torch.ones(()))  # belongs to no model, so nothing averages its gradient
    optimizer = amp.optim.Adam([loose, *model.parameters()], lr=0.1)
    for step, (x, y) in enumerate(batches(4)):
        optimizer.zero_grad()
        before = [p.detach().clone() for p in model.parameters()]
        scale = amp.scaler.get_scale()
        with amp.autocast():
            out = model(mine(x))
            assert out.dtype is torch.float32
            loss = F.cross_entropy(out, mine(y)) + 0 * loose
        amp.scaler.scale(loss).backward()
        if step == 1 and amp.rank() == 1:
            loose.grad.fill_(float("inf"))
        with references_allowed():
            amp.scaler.step(optimizer)
        amp.scaler.update()
        moved = any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert moved is (step != 1)
        assert amp.scaler.get_scale() == (scale / 2 if step == 1 else scale)
    assert len(set(gathered(amp.scaler.get_scale()))) == 1
    assert amp.scaler.skipped_steps == 1
    assert_equal_on_ranks(model.parameters())


def check_an_overflow_under_ddp_is_skipped_by_both() -> None:
    model, _ = twin()
    prepared = amp.prepare_model(model)
    optimizer = amp.optim.SGD(prepared.parameters(), lr=0.1)
    skipped = amp.scaler.skipped_steps
    for step, (x, y) in enumerate(batches(3)):
        optimizer.zero_grad()
        with amp.autocast():
            loss = prepared.loss(mine(x), mine(y))
        if step == 1 and amp.rank() == 0:
            loss = loss * float("nan")
        amp.scaler.scale(loss).backward()
        amp.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(prepared.parameters(), 1.0)
        amp.scaler.step(optimizer)
        amp.scaler.update()
    assert amp.scaler.skipped_steps == skipped + 1
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert_equal_on_ranks(model.parameters())


def check_levels_train_alike_on_two_ranks() -> None:
    final = {}
    for level in ("O0", "O1", "O2", "O3"):
        amp.init(level, ddp=True, dtype="bf16")
        model, _ = twin(Conv)
        prepared = amp.prepare_model(model)
        optimizer = amp.optim.AdamW(prepared.parameters(), lr=0.01)
        for number in range(4):
            x = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(number * 2 + amp.rank()))
            optimizer.zero_grad()
            with amp.autocast():
                out = prepared(x)
                loss = F.mse_loss(out, torch.ones(4, 2))
            assert out.dtype is torch.float32
            amp.scaler.scale(loss).backward()
            amp.scaler.step(optimizer)
            amp.scaler.update()
        assert_equal_on_ranks(model.parameters())
        final[level] = loss.item()
    assert max(final.values()) - min(final.values()) < 0.1, final


def check_from_main_process_gives_all_ranks_what_rank_0_has() -> None:
    assert amp.from_main_process(amp.rank() + 5) == 5
    assert amp.from_main_process({"path": f"run{amp.rank()}"}) == {"path": "run0"}


def check_shutdown_gives_everything_back() -> None:
    amp.barrier()
    output = sys.stdout
    amp.shutdown()
    assert sys.stdout is sys.__stdout__
    assert output.write("") == 0 and vars(output).get("quiet", False) is False
    assert not dist.is_initialized() and amp.world_size() == 1 and amp.opt_level() == "O0"
    assert builtins.print.__module__ == "builtins" and logging.root.manager.disable == 0
    # A thread of gloo's that outlives the group can abort the process when the interpreter ends.
    tasks = Path("/proc/self/task")
    if tasks.exists():
        assert not [name for task in tasks.iterdir() if "gloo" in (name := (task / "comm").read_text())]


if __name__ == "__main__":
    run_checks(globals())
