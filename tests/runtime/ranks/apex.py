"""Two ranks: Apex's wrappers and amp, in a process group of the script's own."""

from __future__ import annotations

import copy
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import amp_runtime
import torch
import torch.distributed as dist
import torch.nn.functional as F
from support import assert_close, run_checks
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent))

from amp_runtime.apex import amp, parallel
from amp_runtime.apex.parallel import DistributedDataParallel as DDP
from apex_scripts import Net, batches, net, reset

INF = float("inf")


def rank() -> int:
    return dist.get_rank()


def mine(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[rank() :: 2]


def gathered(value: Any) -> list[Any]:
    box: list[Any] = [None, None]
    dist.all_gather_object(box, value)
    return box


def assert_equal_on_ranks(tensors: Any) -> None:
    first, second = gathered([t.detach().clone() for t in tensors])
    assert len(first) == len(second) > 0
    assert_close(first, second, 0.0)


class Plain(nn.Module):
    """Without batch norm, whose statistics would differ."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.spare = nn.Linear(6, 3)
        self.register_buffer("mark", torch.zeros(1))

    def forward(self, x: torch.Tensor, use_spare: bool = False) -> torch.Tensor:
        return self.layers(x) + (self.spare(x) if use_spare else 0)


def twin(seed: int = 3) -> tuple[Plain, Plain]:
    torch.manual_seed(seed)
    model = Plain()
    return model, copy.deepcopy(model)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def check_the_runtime_is_not_told_of_the_group() -> None:
    amp_runtime.shutdown()
    assert amp_runtime.world_size() == 1 and dist.get_world_size() == 2


def check_ddp_equals_the_whole_batch_with_every_option() -> None:
    x, y = batches(1)[0]
    for options in (
        {},
        {"delay_allreduce": True},
        {"message_size": 10},
        {"message_size": 1, "gradient_predivide_factor": 2.0},
        {"delay_allreduce": True, "gradient_predivide_factor": 4.0, "allreduce_always_fp32": True},
        {"retain_allreduce_buffers": True},
    ):
        model, plain = twin()
        wrapped = DDP(model, **options)
        for _ in range(2):  # accumulated
            F.cross_entropy(wrapped(mine(x)), mine(y)).backward()
            F.cross_entropy(plain(x), y).backward()
        assert_close(gradients(model), gradients(plain))
        assert model.spare.weight.grad is None, "nobody used it"
        if options.get("retain_allreduce_buffers"):
            buffers = wrapped.allreduce_buffers
            assert sum(b.numel() for b in buffers) == sum(p.numel() for p in model.parameters())
            base = {b.untyped_storage().data_ptr() for b in buffers}
            assert all(g.untyped_storage().data_ptr() in base for g in gradients(model))


def check_messages_end_at_trigger_parameters() -> None:
    x, y = batches(1)[0]
    model, plain = twin()
    wrapped = DDP(model, allreduce_trigger_params=[model.layers[2].weight])
    assert len(wrapped._order) == 2
    F.cross_entropy(wrapped(mine(x)), mine(y)).backward()
    F.cross_entropy(plain(x), y).backward()
    assert_close(gradients(model), gradients(plain))


def check_half_gradients_are_averaged_in_their_type_and_in_float32() -> None:
    for wide in (True, False):
        model = nn.Linear(2, 1, bias=False).half()
        wrapped = DDP(model, allreduce_always_fp32=wide, gradient_predivide_factor=2.0 if not wide else 1.0)
        wrapped(torch.full((1, 2), 40960.0 if rank() == 0 else 49152.0).half()).sum().backward()
        assert model.weight.grad.dtype is torch.float16
        assert model.weight.grad.float().tolist() == [[45056.0, 45056.0]], "their sum does not fit into float16"


def check_without_averaging_gradients_are_summed_after_the_division_before() -> None:
    for factor, expected in ((1.0, 3.0), (2.0, 1.5)):
        model = nn.Linear(2, 1, bias=False)
        wrapped = DDP(model, gradient_average=False, gradient_predivide_factor=factor)
        wrapped(torch.full((1, 2), float(rank() + 1))).sum().backward()
        assert model.weight.grad.tolist() == [[expected] * 2]


def check_parameters_are_broadcast_and_buffers_are_not() -> None:
    torch.manual_seed(rank())
    model = Plain()
    model.mark.fill_(rank())
    DDP(model)
    assert_equal_on_ranks(model.parameters())
    assert model.mark.item() == rank()


def check_a_part_that_one_rank_uses_counts_as_zero_on_the_other() -> None:
    for delay in (True, False):
        model, plain = twin()
        x = torch.ones(2, 6)
        DDP(model, delay_allreduce=delay)(x, use_spare=rank() == 1).sum().backward()
        plain(x, use_spare=True).sum().backward()
        assert_close([model.spare.weight.grad], [plain.spare.weight.grad / 2])
        assert_close([model.layers[0].weight.grad], [plain.layers[0].weight.grad])


def check_allreduce_can_be_disabled_to_accumulate() -> None:
    x, y = batches(1)[0]
    model, plain = twin()
    wrapped = DDP(model)
    wrapped.disable_allreduce()
    F.cross_entropy(wrapped(mine(x)), mine(y)).backward()
    first, second = gathered(gradients(model))
    assert not torch.equal(first[0], second[0])
    wrapped.enable_allreduce()
    F.cross_entropy(wrapped(mine(x)), mine(y)).backward()
    (2 * F.cross_entropy(plain(x), y)).backward()
    assert_close(gradients(model), gradients(plain))


def check_gradients_can_be_differentiated_twice() -> None:
    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    x = batches(1)[0][0]
    model, plain = twin()
    wrapped = DDP(model)
    (loss(wrapped, mine(x)) + wrapped(mine(x)).square().mean()).backward()
    (loss(plain, x) + plain(x).square().mean()).backward()
    assert_close(gradients(model), gradients(plain))


def check_frozen_and_thawed_parameters() -> None:
    x, y = batches(1)[0]
    model, plain = twin()
    wrapped = DDP(model)
    for frozen in (True, False):
        for one in (model, plain):
            one.zero_grad()
            one.layers[0].requires_grad_(not frozen)
        F.cross_entropy(wrapped(mine(x)), mine(y)).backward()
        F.cross_entropy(plain(x), y).backward()
        assert_close(gradients(model), gradients(plain))


def check_reentrant_checkpoints_and_sparse_gradients() -> None:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(1)
    model = nn.ModuleDict({"table": nn.Embedding(5, 6, sparse=True), "net": Plain()})
    plain = copy.deepcopy(model)

    class Run(nn.Module):
        def __init__(self, parts: nn.ModuleDict) -> None:
            super().__init__()
            self.parts = parts

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.parts["net"].layers, self.parts["table"](ids), use_reentrant=True)

    ids = torch.tensor([0, 1, 1, 4])
    DDP(Run(model))(mine(ids)).square().mean().backward()
    Run(plain)(ids).square().mean().backward()
    assert model["table"].weight.grad.is_sparse
    found = [g.to_dense() if g.is_sparse else g for g in gradients(model)]
    assert_close(found, [g.to_dense() if g.is_sparse else g for g in gradients(plain)])


def check_reducer_and_flat_calls() -> None:
    torch.manual_seed(rank())
    model = Plain()
    reducer = parallel.Reducer(model)
    assert_equal_on_ranks(model.parameters())
    plain = copy.deepcopy(model)
    x = batches(1)[0][0]
    model(mine(x)).mean().backward()
    plain(x).mean().backward()
    reducer.reduce()
    assert_close(gradients(model), gradients(plain))
    tensors = [torch.full((2,), float(rank())), torch.full((1,), float(rank()), dtype=torch.float64)]
    parallel.Reducer(tensors).reduce()
    assert [t.tolist() for t in tensors] == [[0.5, 0.5], [0.5]]
    parallel.flat_dist_call(tensors, dist.broadcast, (1,))


def check_synchronised_batch_norm_is_that_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    x, z = torch.randn(6, 3, 4, 4), torch.randn(6, 3, 4, 4)
    for channel_last in (True, False):
        plain = nn.BatchNorm2d(3)
        norm = parallel.convert_syncbn_model(nn.Sequential(nn.BatchNorm2d(3)), channel_last=channel_last)[0]
        norm.fuse_relu = True
        own, other = (mine(t).clone() for t in (x, z))
        if channel_last:
            own, other = own.permute(0, 2, 3, 1), other.permute(0, 2, 3, 1)
        found = norm(own, other)
        found.square().sum().backward()
        if channel_last:
            found = found.permute(0, 3, 1, 2)
        expected = torch.relu(plain(x) + z)
        expected.square().sum().backward()
        assert_close([found], [mine(expected)], 1e-5)
        assert_close([norm.running_mean, norm.running_var], [plain.running_mean, plain.running_var], 1e-5)
        dist.all_reduce(norm.weight.grad)
        assert_close([norm.weight.grad], [plain.weight.grad], 1e-4)


def check_a_group_of_one_normalises_by_its_own_batch() -> None:
    group = parallel.create_syncbn_process_group(1)
    x = torch.randn(6, 3) + rank() * 5
    norm = parallel.convert_syncbn_model(nn.BatchNorm1d(3), process_group=group)
    assert_close([norm(x)], [nn.BatchNorm1d(3)(x)], 1e-5)


def prepared(level: str, wrap: Any, model: Any = None, **options: Any) -> tuple[Any, Any, Any]:
    reset()
    os.environ["AMP_DTYPE"] = "fp16"
    model = net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)
    return wrap(model), model, optimizer


def step(model: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor, factor: float = 1.0) -> None:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        (scaled_loss * factor).backward()
    optimizer.step()


def scales() -> list[float]:
    return gathered(amp._amp_state.loss_scalers[0].loss_scale())


def check_o1_and_o2_train_alike_on_all_ranks_and_near_float32() -> None:
    data = batches(6)
    for level in ("O0", "O1", "O2"):
        for wrap in (lambda m: DDP(m, delay_allreduce=True), nn.parallel.DistributedDataParallel):
            torch.manual_seed(3 + rank())  # rank 0's weights go to all
            start = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
            torch.manual_seed(3)
            plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
            wrapped, model, optimizer = prepared(level, wrap, start)
            reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
            for x, y in data:
                step(wrapped, optimizer, mine(x), mine(y))
                reference.zero_grad()
                F.cross_entropy(plain(x), y).backward()
                reference.step()
            assert_equal_on_ranks(amp.master_params(optimizer))
            tolerance = 1e-6 if level == "O0" else 1e-2
            assert_close([p.float() for p in model.parameters()], plain.parameters(), tolerance)


def check_an_overflow_on_one_rank_skips_the_step_on_all() -> None:
    x, y = batches(1)[0]
    for level in ("O1", "O2"):
        for wrap in (DDP, nn.parallel.DistributedDataParallel):
            wrapped, _, optimizer = prepared(level, wrap)
            before = [p.detach().clone() for p in amp.master_params(optimizer)]
            step(wrapped, optimizer, mine(x), mine(y), INF if rank() == 1 else 1.0)
            assert scales() == [32768.0] * 2
            assert_close(amp.master_params(optimizer), before, 0.0)
            step(wrapped, optimizer, mine(x), mine(y))
            assert_equal_on_ranks(amp.master_params(optimizer))


def check_an_overflow_after_the_averaging_or_without_it_is_agreed_on() -> None:
    x, y = batches(1)[0]
    for wrap in (DDP, nn.parallel.DistributedDataParallel):
        wrapped, model, optimizer = prepared("O1", wrap)
        before = [p.detach().clone() for p in amp.master_params(optimizer)]
        with wrapped.no_sync() if hasattr(wrapped, "no_sync") else nullcontext():
            if wrap is DDP:
                wrapped.disable_allreduce()
            with amp.scale_loss(F.cross_entropy(wrapped(mine(x)), mine(y)), optimizer) as scaled_loss:
                scaled_loss.backward()
                if rank() == 1:
                    model.first.weight.grad[0, 0] = INF
        optimizer.step()
        assert scales() == [32768.0] * 2
        assert_close(amp.master_params(optimizer), before, 0.0)


def check_accumulation_without_averaging_is_averaged_with_the_last_pass() -> None:
    x, y = batches(1, rows=16)[0]
    for level in ("O0", "O1", "O2"):
        for wrap in (DDP, nn.parallel.DistributedDataParallel):
            torch.manual_seed(3)
            plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
            wrapped, _, optimizer = prepared(level, wrap, copy.deepcopy(plain))
            for _ in range(2):
                optimizer.zero_grad()
                for i in range(4):
                    quiet = wrapped.no_sync() if i < 3 and wrap is not DDP else nullcontext()
                    if wrap is DDP:
                        wrapped.disable_allreduce() if i < 3 else wrapped.enable_allreduce()
                    with quiet:
                        loss = F.cross_entropy(wrapped(mine(x)[i::4]), mine(y)[i::4]) / 4
                        with amp.scale_loss(loss, optimizer) as scaled_loss:
                            scaled_loss.backward()
                plain.zero_grad()
                F.cross_entropy(plain(x), y).backward()
                found = [p.grad for p in amp.master_params(optimizer)]
                assert_close(found, gradients(plain), 1e-6 if level == "O0" else 5e-3)
                assert_equal_on_ranks(found)


def check_a_rank_that_trains_alone_waits_for_nobody() -> None:
    x, y = batches(1)[0]
    _, model, optimizer = prepared("O1", lambda m: m)
    if rank() == 0:
        step(model, optimizer, x, y, INF)
        step(model, optimizer, x, y)
    assert scales() == [32768.0, 65536.0]


def check_uneven_inputs_under_torchs_join() -> None:
    wrapped, _, optimizer = prepared("O1", nn.parallel.DistributedDataParallel, nn.Linear(6, 3))
    with wrapped.join():
        for x, y in batches(2 + rank()):
            step(wrapped, optimizer, x, y)
    assert_equal_on_ranks(wrapped.parameters())


def check_combine_ddp_takes_the_place_of_the_wrapper() -> None:
    data = batches(4)
    for level in ("O1", "O2"):
        torch.manual_seed(rank())
        start = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        _, model, optimizer = prepared(level, lambda m: m, start, combine_grad=True, combine_ddp=True)
        assert_equal_on_ranks(model.parameters())
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
        for x, y in data:
            step(model, optimizer, mine(x), mine(y))
            reference.zero_grad()
            F.cross_entropy(plain(x), y).backward()
            reference.step()
        assert_equal_on_ranks(amp.master_params(optimizer))
        assert_close([p.float() for p in model.parameters()], plain.parameters(), 1e-2)
        step(model, optimizer, mine(data[0][0]), mine(data[0][1]), INF if rank() == 0 else 1.0)
        assert scales() == [32768.0] * 2


def check_fp16_optimizer_skips_on_all_ranks() -> None:
    from amp_runtime.apex.fp16_utils import FP16_Optimizer

    reset()
    model = DDP(Net().half())
    optimizer = FP16_Optimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), dynamic_loss_scale=True, verbose=False,
        dynamic_loss_args={"init_scale": 64.0},
    )  # fmt: skip
    x = mine(batches(1)[0][0]).half()
    optimizer.backward(model(x).float().square().sum() * (INF if rank() == 0 else 1.0))
    optimizer.step()
    assert gathered((optimizer.overflow, optimizer.loss_scale)) == [(True, 32.0)] * 2
    optimizer.zero_grad()
    optimizer.backward(model(x).float().square().sum())
    optimizer.step()
    assert_equal_on_ranks([p for group in optimizer.param_groups for p in group["params"]])


def main() -> None:
    dist.init_process_group("gloo")
    run_checks(globals())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
