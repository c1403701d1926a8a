"""Writes through an index, into tensors of another type than what is written."""

from __future__ import annotations

from collections.abc import Callable

import amp_runtime as amp
import pytest
import torch

INDEX = torch.tensor([2, 0, 1, 0])
PLACES = INDEX[:, None].expand(4, 3)
MASK = torch.tensor([True, False, True, True])

Write = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _by_mask(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    target[MASK] = source[MASK]
    return target


def _by_places(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    target[INDEX] = source
    return target


IN_PLACE: dict[str, Write] = {
    "index_add_": lambda a, b: a.index_add_(0, INDEX, b),
    "index_copy_": lambda a, b: a.index_copy_(0, INDEX, b),
    "index_put_": lambda a, b: a.index_put_((INDEX,), b, accumulate=True),
    "index_reduce_": lambda a, b: a.index_reduce_(0, INDEX, source=b, reduce="amax"),
    "scatter_": lambda a, b: a.scatter_(0, PLACES, b),
    "scatter_add_": lambda a, b: a.scatter_add_(0, PLACES, b),
    "scatter_reduce_": lambda a, b: a.scatter_reduce_(0, PLACES, b, "sum"),
    "masked_scatter_": lambda a, b: a.masked_scatter_(MASK[:, None], b),
    "put_": lambda a, b: a.put_(INDEX, b[:, 0]),
    "lerp_": lambda a, b: a.lerp_(b, 0.5),
    "addmm_": lambda a, b: a[:3].addmm_(b[:3], b[:3]),
    "a mask": _by_mask,
    "places": _by_places,
}
GIVING: dict[str, Write] = {
    "Tensor.index_add": lambda a, b: a.index_add(0, INDEX, b),
    "index_add": lambda a, b: torch.index_add(a, 0, INDEX, b),
    "scatter": lambda a, b: torch.scatter(a, 0, PLACES, b),
    "scatter_reduce": lambda a, b: a.scatter_reduce(0, PLACES, b, "mean"),
    "masked_scatter": lambda a, b: a.masked_scatter(MASK[:, None], b),
}


def _pair(one: torch.dtype, other: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(4, 3, dtype=one), torch.arange(12.0).view(4, 3).to(other)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("write", IN_PLACE.values(), ids=IN_PLACE)
def test_what_is_written_takes_the_type_of_what_it_is_written_into(write: Write, half: torch.dtype) -> None:
    expected = write(*_pair(torch.float32, torch.float32))
    for target, source in (_pair(torch.float32, half), _pair(half, torch.float32)):
        with pytest.raises(RuntimeError):
            write(target, source)
        amp.init("O1")
        target.zero_()
        assert write(target, source).dtype is target.dtype and torch.equal(write(target.zero_(), source), expected)
        amp.shutdown()


@pytest.mark.parametrize("write", GIVING.values(), ids=GIVING)
def test_a_result_of_its_own_has_the_widest_type(write: Write) -> None:
    amp.init("O1")
    for types in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)):
        assert write(*_pair(*types)).dtype is torch.float32
    assert write(*_pair(torch.float16, torch.float16)).dtype is torch.float16


def test_gradients_flow_through_what_was_converted() -> None:
    amp.init("O1", dtype="bf16")
    weight = torch.ones(3, 3, requires_grad=True)
    with amp.autocast():
        out = torch.zeros(4, 3)
        out[MASK] = torch.ones(3, 3) @ weight
    out.sum().backward()
    assert weight.grad is not None and weight.grad.dtype is torch.float32 and weight.grad.tolist() == [[3.0] * 3] * 3


def test_at_o0_and_after_shutdown_torch_is_its_own() -> None:
    own = torch.Tensor.index_add_, torch.index_add, torch.Tensor.__setitem__
    amp.init("O0")
    assert (torch.Tensor.index_add_, torch.index_add, torch.Tensor.__setitem__) == own
    amp.init("O1")
    assert torch.index_add is not own[1]
    with amp.disable_casts(), pytest.raises(RuntimeError, match="same"):
        IN_PLACE["index_add_"](*_pair(torch.float32, torch.float16))
    amp.shutdown()
    assert (torch.Tensor.index_add_, torch.index_add, torch.Tensor.__setitem__) == own
    assert "index_add_" not in vars(torch.Tensor)


def test_torchscript_still_knows_the_functions() -> None:
    amp.init("O1")
    scripted = torch.jit.script(_scripted)
    assert scripted(torch.ones(3, 2), torch.arange(3)).tolist() == [[2.0, 2.0]] * 3


def _scripted(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.index_add(x, 0, index, x)


@pytest.mark.parametrize("other", [torch.float64, torch.int64])
def test_what_is_no_half_or_single_type_is_refused_as_ever(other: torch.dtype) -> None:
    amp.init("O1")
    with pytest.raises(RuntimeError):
        IN_PLACE["index_add_"](*_pair(torch.float16, other))


MADE: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "complex": lambda a, b: torch.complex(a, b),
    "polar": lambda a, b: torch.polar(a, b),
    "heaviside": lambda a, b: torch.heaviside(a, b),
    "Tensor.heaviside": lambda a, b: a.heaviside(b),
    "isclose": lambda a, b: a.isclose(b),
    "allclose": lambda a, b: torch.allclose(a, b),
}


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_is_made_of_two_parts_has_the_widest_type(
    make: Callable[[torch.Tensor, torch.Tensor], object], half: torch.dtype
) -> None:
    expected = make(*_pair(torch.float32, torch.float32))
    amp.init(opt_level="O1", dtype=half)
    for one, other in (_pair(torch.float32, half), _pair(half, torch.float32)):
        made = make(one, other)
        assert torch.equal(made, expected) if isinstance(made, torch.Tensor) else made == expected


def test_weights_of_a_bag_take_the_type_of_its_table() -> None:
    bag, places = torch.nn.EmbeddingBag(5, 3, mode="sum"), torch.tensor([[0, 2], [4, 4]])
    weights = torch.tensor([[0.5, 1.0], [0.25, 2.0]])
    expected = bag(places, per_sample_weights=weights)
    amp.init(opt_level="O1", dtype=torch.float16)
    half = weights.half().requires_grad_()
    given = bag(places, per_sample_weights=half)
    assert torch.equal(given, expected)
    given.sum().backward()
    assert half.grad is not None
