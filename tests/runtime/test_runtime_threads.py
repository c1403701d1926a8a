"""Functions that run in other threads than the region they belong to, and types of what is counted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import amp_runtime as amp
import pytest
import torch
import torch.nn.functional as F
from torch import nn


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_bound_function_runs_as_in_its_region(dtype: str) -> None:
    amp.init("O1", dtype=dtype)
    layer = nn.Linear(4, 4)

    def work(x: torch.Tensor) -> tuple[torch.dtype, torch.dtype]:
        return layer(x).dtype, F.softmax(x, dim=0).dtype

    with ThreadPoolExecutor(1) as pool, amp.autocast():
        h = layer(torch.ones(4))
        with pytest.raises(RuntimeError, match="dtype"):
            pool.submit(layer, h).result()
        expected = work(h)
        assert pool.submit(amp.in_this_region(work), h).result() == expected == (h.dtype, torch.float32)
        assert pool.submit(amp.in_this_region(layer), h).result().dtype is h.dtype
        assert pool.submit(torch.is_autocast_enabled, "cpu").result() is False, "the thread is left as it was"
        assert amp.in_this_region(work).__name__ == "work"


def test_where_nothing_is_cast_the_function_is_itself() -> None:
    assert amp.in_this_region(len) is len
    amp.init("O1")
    assert amp.in_this_region(len) is len
    with amp.autocast(), amp.autocast(enabled=False):
        assert amp.in_this_region(len) is len
    with amp.disable_casts(), amp.autocast():
        assert amp.in_this_region(len) is len
    amp.init("O0")
    with amp.autocast():
        assert amp.in_this_region(len) is len


def test_half_types_are_widened_and_no_others() -> None:
    assert amp.at_least_float32(torch.float16) is torch.float16, "a model that was made half without the runtime"
    amp.init("O1")
    for dtype in (torch.float16, torch.bfloat16):
        assert amp.at_least_float32(dtype) is torch.float32
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64):
        assert amp.at_least_float32(dtype) is dtype
