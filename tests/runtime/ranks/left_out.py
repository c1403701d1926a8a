"""Two ranks: layers that take no part in some or all steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import amp_runtime as amp
import torch
import torch.nn.functional as F
from support import assert_close, assert_equal_on_ranks, run_checks
from torch import nn

ALL_RANKS = (0, 1)


class Heads(nn.Module):
    """A network of which a pass uses some of the heads; the first layer that a pass may leave out stands in front."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Embedding(4, 6, sparse=True)
        self.first = nn.Linear(6, 5)
        self.heads = nn.ModuleList([nn.Linear(5, 3) for _ in range(3)])
        self.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor, heads: tuple[int, ...], prompted: bool = False) -> torch.Tensor:
        if prompted:
            x = x + self.prompt(torch.arange(len(x)) % 4)
        hidden = torch.tanh(self.first(x))
        found = sum(self.heads[number](hidden) for number in heads)
        assert isinstance(found, torch.Tensor)
        return found * self.phase.real if prompted else found


def twin() -> tuple[Any, Any]:
    torch.manual_seed(5)
    model = Heads()
    return model, copy.deepcopy(model)


def batches(steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(13)
    for _ in range(steps):
        yield torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Both change a weight whose gradient is zero, and leave alone one that has none."""
    dense = [p for name, p in model.named_parameters() if name != "prompt.weight"]
    return [torch.optim.AdamW(dense, 0.05, weight_decay=0.1), torch.optim.SparseAdam([model.prompt.weight], 0.05)]


Parts = Callable[[int, int], tuple[tuple[int, ...], bool]]
"""The heads that a rank uses in a step, and whether it uses the prompt."""

ALWAYS: Parts = lambda step, rank: ((0,), False)  # noqa: E731
TURNS: Parts = lambda step, rank: ((step % 3,), step % 2 == 0)  # noqa: E731
BY_RANK: Parts = lambda step, rank: ((rank, 2), step == 2 * rank + 1)  # noqa: E731
ALL_AT_FIRST: Parts = lambda step, rank: ((0, 1, 2) if step < 3 else (step % 3,), step < 2 or rank == 1)  # noqa: E731


def train(
    parts: Parts,
    prepared: Any,
    alone: Any,
    between: Callable[[torch.Tensor, list[torch.optim.Optimizer]], None] = lambda loss, of: None,
    micro: int = 1,
    steps: int = 5,
) -> None:
    """Trains both, one on its rank's samples and the other on those of all ranks, and compares them in each step."""
    mine, reference = optimizers(prepared), optimizers(alone)
    for step in range(steps):
        for optimizer in (*mine, *reference):
            optimizer.zero_grad()
        given = list(batches(steps * micro))[step * micro : (step + 1) * micro]
        for x, y in given:
            loss = F.cross_entropy(prepared(x[amp.rank() :: 2], *parts(step, amp.rank())), y[amp.rank() :: 2])
            amp.scaler.scale(loss).backward()
            between(loss, mine)
            whole = [F.cross_entropy(alone(x[rank::2], *parts(step, rank)), y[rank::2]) for rank in ALL_RANKS]
            (sum(whole) / 2).backward()
        for optimizer in mine:
            amp.scaler.step(optimizer)
        amp.scaler.update()
        for mine_after, of_reference in zip(prepared.parameters(), alone.parameters(), strict=True):
            assert (mine_after.grad is None) == (of_reference.grad is None), step
        for optimizer in reference:
            optimizer.step()
        assert_equal_on_ranks(prepared.parameters())
        assert_close(prepared.parameters(), alone.parameters(), 1e-5)


def check_a_layer_that_takes_no_part_counts_as_zero_and_stays_without_a_gradient_where_none_used_it() -> None:
    for parts in (ALWAYS, TURNS, BY_RANK, ALL_AT_FIRST):
        model, alone = twin()
        train(parts, amp.prepare_model(model), alone)


def check_what_ranks_exchange_between_the_pass_and_the_step_does_not_meet_gradients() -> None:
    def exchange(loss: torch.Tensor, _: Any) -> None:
        assert amp.reduce_mean(torch.ones(3)).tolist() == [1.0] * 3
        assert amp.from_main_process(float(loss)) == amp.from_main_process(float(loss))
        assert len(amp.gather(loss.detach().reshape(1))) == 2
        amp.barrier()

    for parts in (TURNS, BY_RANK):
        model, alone = twin()
        train(parts, amp.prepare_model(model), alone, exchange)


def check_a_hook_that_exchanges_something_ends_no_pass() -> None:
    model, alone = twin()
    prepared = amp.prepare_model(model)
    seen: list[float] = []
    model.first.register_full_backward_hook(lambda *_: seen.append(amp.reduce_sum(1.0)))
    train(TURNS, prepared, alone)
    assert seen == [2.0] * 5


def check_gradients_are_whole_where_a_script_looks_at_them() -> None:
    for parts in (TURNS, BY_RANK):
        model, alone = twin()
        prepared = amp.prepare_model(model)

        def look(loss: torch.Tensor, of: list[torch.optim.Optimizer], model: Any = model) -> None:
            amp.scaler.unscale_(of[0])
            assert_equal_on_ranks([p.grad for p in model.heads.parameters() if p.grad is not None])

        train(parts, prepared, alone, look)


def check_passes_of_several_batches_before_a_step_each_leave_something_out() -> None:
    for parts in (ALWAYS, BY_RANK):
        model, alone = twin()
        train(parts, amp.prepare_model(model), alone, micro=3)


def check_gradients_that_travel_otherwise_leave_the_same_layers_out() -> None:
    for options in ({"gradient_predivide_factor": 2.0}, {"allreduce_always_fp32": True}, {"message_size": 8}):
        for parts in (TURNS, BY_RANK):
            model, alone = twin()
            del model.prompt, alone.prompt  # sparse gradients travel as they are
            for net in (model, alone):
                net.prompt = nn.Embedding(4, 6)
            prepared = amp.prepare_model(model, **options)
            alone.load_state_dict(model.state_dict())
            train_dense(parts, prepared, alone)


def train_dense(parts: Parts, prepared: Any, alone: Any) -> None:
    mine, reference = (torch.optim.AdamW(net.parameters(), 0.05, weight_decay=0.1) for net in (prepared, alone))
    for step, (x, y) in enumerate(batches(4)):
        mine.zero_grad(set_to_none=False)
        reference.zero_grad(set_to_none=False)
        F.cross_entropy(prepared(x[amp.rank() :: 2], *parts(step, amp.rank())), y[amp.rank() :: 2]).backward()
        whole = [F.cross_entropy(alone(x[rank::2], *parts(step, rank)), y[rank::2]) for rank in ALL_RANKS]
        (sum(whole) / 2).backward()
        amp.scaler.step(mine)
        reference.step()
        assert_equal_on_ranks(prepared.parameters())
        assert_close(prepared.parameters(), alone.parameters(), 1e-5)


def check_a_closure_meets_whole_gradients() -> None:
    model, alone = twin()
    prepared = amp.prepare_model(model)
    mine, reference = (torch.optim.LBFGS(list(net.first.parameters()), 0.1, max_iter=3) for net in (model, alone))
    for step, (x, y) in enumerate(batches(3)):

        def closure(step: int = step, x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            mine.zero_grad()
            loss = F.cross_entropy(prepared(x[amp.rank() :: 2], *TURNS(step, 0)), y[amp.rank() :: 2])
            loss.backward()
            return loss

        def on_all(step: int = step, x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            reference.zero_grad()
            loss = F.cross_entropy(alone(x[::2], *TURNS(step, 0)), y[::2])
            loss = (loss + F.cross_entropy(alone(x[1::2], *TURNS(step, 1)), y[1::2])) / 2
            loss.backward()
            return loss

        amp.scaler.step(mine, closure)
        reference.step(on_all)
        assert_equal_on_ranks(prepared.parameters())
        assert_close(prepared.parameters(), alone.parameters(), 1e-4)


def net(seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.Linear(7, 6))
    return model, copy.deepcopy(model)


def heads_of(step: int, rank: int) -> tuple[tuple[int, ...], bool]:
    """On the second rank all parts, on the first a part."""
    return ((0, 1, 2), True) if rank else ((step % 3,), False)


def check_a_second_backward_pass_does_not_meet_the_gradients_of_the_first() -> None:
    (model, alone), (before, before_alone) = twin(), net(7)
    for heads in (model, alone):  # torch DDP divides a sparse gradient where it shares its memory with that of x
        heads.prompt = nn.Embedding.from_pretrained(torch.ones(4, 6), freeze=False)
    prepared_before = amp.prepare_model(before, message_size=8)
    prepared = amp.prepare_model(model, message_size=8)
    pairs = [(prepared, alone), (prepared_before, before_alone)]
    mine, reference = ([torch.optim.SGD(one[k].parameters(), 0.1) for one in pairs] for k in (0, 1))
    for step, (x, y) in enumerate(batches(4)):
        for optimizer in (*mine, *reference):
            optimizer.zero_grad()
        own, parts = slice(amp.rank(), None, 2), heads_of(step, amp.rank())
        middle = prepared_before(x[own])
        # A rank whose pass is complete waits in it for the others.
        F.cross_entropy(prepared(x[own], *parts), y[own]).backward()
        middle.square().mean().backward()
        for rank in ALL_RANKS:
            loss = F.cross_entropy(alone(x[rank::2], *heads_of(step, rank)), y[rank::2])
            ((loss + before_alone(x[rank::2]).square().mean()) / 2).backward()
        for optimizer in mine:
            amp.scaler.step(optimizer)
        for optimizer in reference:
            optimizer.step()
        for one, of_reference in pairs:
            assert_equal_on_ranks(one.parameters())
            assert_close(one.parameters(), of_reference.parameters(), 1e-5)


def check_a_forward_pass_that_exchanges_something_does_not_meet_the_gradients_of_another_model() -> None:
    model, _ = twin()
    other = nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Linear(7, 6))
    prepared, other = amp.prepare_model(model), amp.prepare_model(other, sync_bn=True)
    optimizer = torch.optim.SGD([*prepared.parameters(), *other.parameters()], 0.1)
    for step, (x, y) in enumerate(batches(3)):
        optimizer.zero_grad()
        own = slice(amp.rank(), None, 2)
        F.cross_entropy(prepared(x[own], *heads_of(step, amp.rank())), y[own]).backward()
        other(x[own]).square().mean().backward()
        amp.scaler.step(optimizer)
        assert_equal_on_ranks([*prepared.parameters(), *other.parameters()])


def check_gradients_that_the_script_has_cleared_do_not_come_back() -> None:
    for stepped in (False, True):  # by the optimizer of a generator, whose pass goes through the discriminator
        model, alone = twin()
        prepared, generator = amp.prepare_model(model), amp.prepare_model(nn.Linear(6, 6))
        of_generator = torch.optim.SGD(generator.parameters(), 0.1)
        for x, _ in batches(3):
            own = x[amp.rank() :: 2]
            prepared(generator(own), (amp.rank(),)).sum().backward()
            if stepped:
                amp.scaler.step(of_generator)
            prepared.zero_grad(set_to_none=not stepped)
            prepared(own, (2,)).sum().backward()
            amp.barrier()
            (alone(x, (2,)).sum() / 2).backward()
            for mine, reference in zip(prepared.parameters(), alone.parameters(), strict=True):
                if reference.grad is None:
                    assert mine.grad is None or not mine.grad.count_nonzero()
                else:
                    assert mine.grad is not None
                    assert_close([mine.grad], [reference.grad], 1e-5)
            for net in (prepared, alone, generator):
                net.zero_grad()


def check_hooks_do_not_see_what_took_no_part() -> None:
    model, alone = twin()
    seen: list[str] = []
    for net in (model, alone):
        for name, parameter in net.heads.named_parameters():
            parameter.register_hook(lambda gradient: gradient + 1)
            if net is model:
                parameter.register_post_accumulate_grad_hook(lambda _, name=name: seen.append(name))
    prepared = amp.prepare_model(model)
    train(ALWAYS, prepared, alone)
    assert seen == ["0.bias", "0.weight"] * 5 or seen == ["0.weight", "0.bias"] * 5


def check_layers_may_be_frozen_before_the_step() -> None:
    model, alone = twin()
    prepared = amp.prepare_model(model)

    def freeze(*_: Any) -> None:
        for net in (model, alone):
            net.heads[2].requires_grad_(False)

    train(ALWAYS, prepared, alone, freeze)


if __name__ == "__main__":
    run_checks(globals())
