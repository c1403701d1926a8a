"""Three ranks: batch norm over all of them equals batch norm of the whole batch."""

from __future__ import annotations

import copy
import io
import itertools
import warnings
from typing import Any

import amp_runtime as amp
import torch
import torch.distributed as dist
from amp_runtime._distributed import shadow
from hypothesis import given, settings
from hypothesis import strategies as st
from support import assert_close, gathered, run_checks
from torch import nn

RANKS = 3
KINDS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def part_of(whole: torch.Tensor, sizes: list[int], rank: int) -> torch.Tensor:
    start = sum(sizes[:rank])
    return whole[start : start + sizes[rank]]


def synchronised(layer: nn.Module, **options: Any) -> Any:
    return amp.convert_sync_batchnorm(copy.deepcopy(layer), **options)


def summed(tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def assert_like_the_whole_batch(
    layer: Any, x: torch.Tensor, sizes: list[int], tolerance: float = 1e-5, reference: Any = None
) -> Any:
    """Forward, backward and running statistics over two steps; returns the output of the last one."""
    layer.train()
    mine, whole = synchronised(layer), copy.deepcopy(reference or layer)
    generator = torch.Generator().manual_seed(9)
    for _ in range(2):
        weights = torch.randn(x.shape, generator=generator)
        inputs = []
        for module, value, weight in (
            (mine, part_of(x, sizes, amp.rank()), part_of(weights, sizes, amp.rank())),
            (whole, x if reference is None else x.float(), weights),
        ):
            value = value.detach().clone(memory_format=torch.preserve_format).requires_grad_()
            module.zero_grad()
            out = module(value)
            (out.float() * weight).sum().backward()
            inputs.append((out, value.grad))
        (out, slope), (expected, expected_slope) = inputs
        assert out.dtype is x.dtype and slope.dtype is x.dtype
        assert_close([out.float()], [part_of(expected, sizes, amp.rank())], tolerance)
        assert_close([slope.float()], [part_of(expected_slope, sizes, amp.rank())], tolerance)
        for own, full in zip(mine.parameters(), whole.parameters(), strict=True):
            assert_close([summed(own.grad.float())], [full.grad.float()], tolerance * 10)
        assert_close([b.float() for b in mine.buffers()], [b.float() for b in whole.buffers()], tolerance)
        x = x + 1
    return out


@given(
    dimensions=st.sampled_from([1, 2, 3]),
    flat=st.booleans(),
    channels=st.integers(1, 5),
    sizes=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    extent=st.integers(1, 4),
    affine=st.booleans(),
    tracked=st.booleans(),
    momentum=st.sampled_from([None, 0.1, 0.7]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None, database=None, derandomize=True)
def check_any_shape_equals_the_whole_batch(
    dimensions: int, flat: bool, channels: int, sizes: list[int], extent: int, affine: bool, tracked: bool,
    momentum: float | None, seed: int,
) -> None:  # fmt: skip
    space = () if dimensions == 1 and flat else (extent,) * dimensions
    if sum(sizes) * extent ** len(space) < 4:
        return  # with two values a channel the derivative is a difference of equal numbers
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((sum(sizes), channels, *space), generator=generator) * 2 + 1
    layer = KINDS[dimensions](channels, affine=affine, track_running_stats=tracked, momentum=momentum)
    if affine:
        nn.init.normal_(layer.weight, generator=generator), nn.init.normal_(layer.bias, generator=generator)
    assert_like_the_whole_batch(layer, x, sizes, 2e-5)


def check_statistics_may_be_left_as_they_are_for_a_while() -> None:
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))
    layer = nn.BatchNorm1d(4)
    layer.track_running_stats = False  # torch keeps the buffers, and no longer changes them
    assert_like_the_whole_batch(layer, x, [4, 2, 3])
    mine = synchronised(layer)
    mine(part_of(x, [4, 2, 3], amp.rank()))
    assert_close(list(mine.buffers()), list(nn.BatchNorm1d(4).buffers()), 0)


def check_large_means_lose_no_digits() -> None:
    x = torch.randn(9, 4, 5, generator=torch.Generator().manual_seed(1)) + 3000 * torch.arange(1.0, 5).view(1, 4, 1)
    assert_like_the_whole_batch(nn.BatchNorm1d(4), x, [2, 6, 1], 2e-3)
    exact = nn.functional.batch_norm(x.double(), None, None, training=True)
    out = synchronised(nn.BatchNorm1d(4, affine=False))(part_of(x, [2, 6, 1], amp.rank()))
    alone = nn.functional.batch_norm(x, None, None, training=True)
    error = (out - part_of(exact, [2, 6, 1], amp.rank())).abs().max()
    assert error < 2 * (alone - exact).abs().max() + 1e-6, "as accurate as torch's own in float32"


def check_the_memory_format_is_kept() -> None:
    for shape, memory in (((6, 4, 3, 3), torch.channels_last), ((6, 4, 2, 3, 3), torch.channels_last_3d)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(memory_format=memory)
        out = assert_like_the_whole_batch(KINDS[len(shape) - 2](4), x, [2, 3, 1])
        assert out.is_contiguous(memory_format=memory)


def check_half_inputs_and_half_modules() -> None:
    for dtype, tolerance in ((torch.bfloat16, 4e-2), (torch.float16, 5e-3)):
        x = torch.randn(9, 4, 3, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
        layer = nn.BatchNorm2d(4)
        nn.init.normal_(layer.weight)
        dist.broadcast(layer.weight.data, 0)
        out = assert_like_the_whole_batch(layer, x, [4, 0, 5], tolerance, reference=layer)
        assert out.dtype is dtype
        half = copy.deepcopy(layer).to(dtype)
        mine = assert_like_the_whole_batch(half, x, [4, 0, 5], tolerance, reference=layer)
        assert mine.dtype is dtype and half.weight.dtype is dtype


def check_float64_stays_exact() -> None:
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)).double() * 1e3
    layer = synchronised(nn.BatchNorm1d(3).double())
    out = layer(part_of(x, [1, 2, 3], amp.rank()))
    assert_close([out], [part_of(nn.BatchNorm1d(3).double()(x), [1, 2, 3], amp.rank())], 1e-12)


def check_gradients_can_be_differentiated_again() -> None:
    x = torch.randn(7, 3, 2, generator=torch.Generator().manual_seed(1)).double()
    sizes, results = [3, 0, 4], []
    for layer, value in (
        (synchronised(nn.BatchNorm1d(3).double()), part_of(x, sizes, amp.rank())),
        (nn.BatchNorm1d(3).double(), x),
    ):
        value = value.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(layer(value).tanh().sum(), value, create_graph=True)
        slope.square().sum().backward()
        results.append((value.grad, layer.weight.grad))
    assert_close([results[0][0]], [part_of(results[1][0], sizes, amp.rank())], 1e-9)
    assert_close([summed(results[0][1])], [results[1][1]], 1e-9)


def check_evaluation_is_plain_and_waits_for_nobody() -> None:
    for tracked in (True, False):
        plain = nn.BatchNorm1d(3, track_running_stats=tracked).eval()
        layer = synchronised(plain).eval()
        if amp.rank() == 1:
            x = torch.randn(4, 3)
            assert torch.equal(layer(x), plain(x))


def check_one_value_a_channel_is_an_error_on_all_ranks() -> None:
    layer = synchronised(nn.BatchNorm1d(3))
    try:
        layer(torch.ones(1 if amp.rank() == 2 else 0, 3))
    except ValueError as error:
        assert "more than 1 value per channel" in str(error)
    else:
        raise AssertionError("no error")
    assert layer(torch.randn(1, 3)).shape == (1, 3), "one value on each rank is enough"


def check_groups_smaller_than_the_world() -> None:
    pair, single = dist.new_group([0, 1]), dist.new_group([2])
    group = single if amp.rank() == 2 else pair
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    sizes = [3, 2, 3]
    for plain in (nn.BatchNorm1d(3), nn.SyncBatchNorm(3, process_group=group)):
        kind = type(plain)
        layer: Any = amp.convert_sync_batchnorm(plain, None if kind is nn.SyncBatchNorm else group)
        assert layer.process_group is group and copy.deepcopy(layer).process_group is group
        value = part_of(x, sizes, amp.rank()).clone().requires_grad_()
        out = layer(value)
        out.square().sum().backward()
        reference = nn.BatchNorm1d(3)
        expected = reference(x[:5] if amp.rank() < 2 else x[5:])
        assert_close([out], [part_of(expected, sizes, amp.rank()) if amp.rank() < 2 else expected], 1e-5)
        assert_close([layer.running_var], [reference.running_var], 1e-6)
        saved = io.BytesIO()
        torch.save(layer, saved)
        saved.seek(0)
        loaded = torch.load(saved, weights_only=False)
        assert type(loaded) is kind and getattr(loaded, "process_group", None) is None


def check_groups_of_neighbours_as_apex_made_them() -> None:
    assert amp.create_syncbn_process_group(0) is None
    assert amp.create_syncbn_process_group(1).size() == 1
    assert dist.get_process_group_ranks(amp.create_syncbn_process_group(3)) == [0, 1, 2]
    for wrong in (2, -1, 6):
        try:
            amp.create_syncbn_process_group(wrong)
        except ValueError as error:
            assert f"group_size={wrong}" in str(error) and "0, 1, 3" in str(error)
        else:
            raise AssertionError(wrong)


def check_conversion_is_in_place_and_keeps_everything() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Sequential(nn.SyncBatchNorm(2)))
    layer, weight = model[1], model[1].weight
    assert amp.convert_sync_batchnorm(model) is model and model[1] is layer and layer.weight is weight
    assert isinstance(layer, amp.SyncBatchNorm) and isinstance(layer, nn.BatchNorm2d)
    assert isinstance(model[2][0], amp.SyncBatchNorm)
    single = nn.BatchNorm1d(2)
    assert isinstance(amp.convert_sync_batchnorm(single), amp.SyncBatchNorm)
    try:
        amp.convert_sync_batchnorm("model")  # type: ignore[arg-type]
    except TypeError as error:
        assert "str" in str(error)
    else:
        raise AssertionError("no error")


def check_two_exchanges_a_step() -> None:
    layer = synchronised(nn.BatchNorm1d(3))
    counts: list[str] = []
    originals = {name: getattr(dist, name) for name in ("all_reduce", "all_gather")}

    def counting(name: str) -> Any:
        return lambda *args, **kwargs: (counts.append(name), originals[name](*args, **kwargs))[1]

    for name in originals:
        setattr(dist, name, counting(name))
    try:
        layer(torch.randn(2, 3, requires_grad=True)).sum().backward()
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    assert counts == ["all_gather", "all_reduce"]


def check_a_shadowing_rank_is_left_out() -> None:
    x = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(1))
    for own_group, twice in itertools.product((None,), (False, True)):
        layer, reference = synchronised(nn.BatchNorm1d(3), process_group=own_group), nn.BatchNorm1d(3)
        part = (part_of(x, [2, 4, 0], amp.rank()) if amp.rank() < 2 else torch.full((5, 3, 4), 1e3)).requires_grad_()
        owner = RoundOwner()
        shadow.begin_round(shadow.Round(owner.reference(), amp.rank() < 2, 2))
        out = layer(part)
        (slope,) = torch.autograd.grad(shadow.weigh(out.square().sum()), part, create_graph=twice)
        shadow.begin_round(None)
        whole = x.clone().requires_grad_()
        expected = reference(whole)
        expected.square().sum().backward()
        if amp.rank() < 2:
            assert_close([out], [part_of(expected, [2, 4, 0], amp.rank())], 1e-5)
            assert_close([slope], [1.5 * part_of(whole.grad, [2, 4, 0], amp.rank())], 1e-4)
        else:
            assert slope.abs().max() == 0
        assert_close(layer.buffers(), reference.buffers(), 1e-5)


class RoundOwner:
    def reference(self) -> Any:
        import weakref

        return weakref.ref(self)


def check_one_that_the_script_makes_itself() -> None:
    generator = torch.Generator().manual_seed(1)
    for dimensions, dtype, tolerance in ((1, torch.float32, 1e-5), (2, torch.float32, 1e-5), (3, torch.float32, 1e-5),
                                         (2, torch.bfloat16, 4e-2), (1, torch.float16, 5e-3)):  # fmt: skip
        x = torch.randn((9, 4, *(3,) * dimensions), generator=generator).to(dtype)
        reference = KINDS[dimensions](4, momentum=0.3)
        nn.init.normal_(reference.weight, generator=generator)
        own = amp.SyncBatchNorm(4, momentum=0.3)
        own.load_state_dict(reference.state_dict())
        assert_like_the_whole_batch(own, x, [4, 0, 5], tolerance, reference=reference)
        assert_like_the_whole_batch(own.to(dtype), x, [4, 3, 2], tolerance, reference=reference)
    flat = torch.randn(9, 4, generator=generator)
    assert_like_the_whole_batch(amp.SyncBatchNorm(4), flat, [4, 2, 3], reference=nn.BatchNorm1d(4))
    assert_like_the_whole_batch(
        amp.SyncBatchNorm(4, affine=False, track_running_stats=False), flat, [4, 2, 3],
        reference=nn.BatchNorm1d(4, affine=False, track_running_stats=False),
    )  # fmt: skip
    model = amp.prepare_model(nn.Sequential(nn.Linear(4, 4), amp.SyncBatchNorm(4)))
    model(flat).sum().backward()
    assert type(amp.unwrap(model)[1]) is amp.SyncBatchNorm
    group = dist.new_group([0, 1, 2])
    layer = amp.SyncBatchNorm(4, process_group=group)
    assert amp.convert_sync_batchnorm(layer).process_group is group
    of_torch = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(layer))
    assert type(of_torch[0]) is nn.SyncBatchNorm, "torch's conversion makes torch's class of every batch norm"
    assert_like_the_whole_batch(amp.SyncBatchNorm.convert_sync_batchnorm(of_torch)[0], flat, [4, 2, 3],
                                reference=nn.BatchNorm1d(4))  # fmt: skip


def check_a_compiled_model_trains_at_o1() -> None:
    amp.init("O1", ddp=True, dtype="bf16")
    try:
        model = nn.Sequential(nn.Linear(4, 4), synchronised(nn.BatchNorm1d(4)), nn.ReLU(), nn.Linear(4, 2))
        plain = copy.deepcopy(model)
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(amp.rank()))
        gradients = []
        for form in (plain, torch.compile(model, backend="eager")):
            with amp.autocast():
                loss = form(x).float().square().mean()
            loss.backward()
            gradients.append([p.grad for p in form.parameters()])
        assert_close(gradients[0], gradients[1], 1e-2)
    finally:
        amp.init("O0", ddp=True)


def check_the_scripts_own_group_without_init() -> None:
    # amp.init is undone, the process group stays: it is the script's own from here on.
    from amp_runtime._core.context import context

    world, rank, owns = context.world_size, context.rank, context.owns_group
    context.world_size, context.rank, context.owns_group = 1, 0, False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            layer = amp.convert_sync_batchnorm(nn.BatchNorm1d(3))
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
        out = layer(part_of(x, [2, 2, 2], rank))
        assert_close([out], [part_of(nn.BatchNorm1d(3)(x), [2, 2, 2], rank)], 1e-5)
    finally:
        context.world_size, context.rank, context.owns_group = world, rank, owns
    assert gathered(1) == [1, 1, 1]


if __name__ == "__main__":
    run_checks(globals())
