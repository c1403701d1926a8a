"""Masks that attention adds to its scores, with numbers that float16 has not."""

from __future__ import annotations

import math

import amp_runtime as amp
import pytest
import torch
import torch.nn.functional as F
from amp_runtime._precision.attention_masks import held


def _mask(value: float) -> torch.Tensor:
    """One row that is masked in part, and one altogether."""
    return torch.tensor([[0.0, value], [value, value]])


@pytest.mark.parametrize("value", [-1e9, torch.finfo(torch.float32).min])
def test_a_row_that_is_masked_altogether_stays_finite(value: float) -> None:
    amp.init(opt_level="O1", dtype=torch.float16)
    layer = torch.nn.MultiheadAttention(4, 1, batch_first=True)
    x = torch.randn(1, 2, 4)
    with amp.autocast():
        outputs = [
            layer(x, x, x, attn_mask=_mask(value))[0],
            layer(x, x, x, attn_mask=_mask(value), need_weights=False)[0],
            F.scaled_dot_product_attention(x, x, x, _mask(value)),
            F.scaled_dot_product_attention(x, x, x, attn_mask=_mask(value)),
        ]
    for output in outputs:
        assert output.isfinite().all()
        assert output[0, 1].abs().sum() > 0


def test_other_numbers_stay_what_they_are() -> None:
    amp.init(opt_level="O1", dtype=torch.float16)
    mask = torch.tensor([0.0, -math.inf, -65504.0, 3.5, -1e5, 1e9])
    wanted = torch.tensor([0.0, -math.inf, -65504.0, 3.5, -32752.0, 32752.0])
    assert torch.equal(held(mask), mask)  # no region is on
    with amp.autocast():
        assert torch.equal(held(mask), wanted)
        assert held(mask.half()) is not None and held(None) is None
    amp.init(opt_level="O1", dtype=torch.bfloat16)
    with amp.autocast():
        assert torch.equal(held(mask), mask)


def test_functions_of_torch_are_given_back() -> None:
    own = F.scaled_dot_product_attention, torch.baddbmm
    amp.init(opt_level="O1", dtype=torch.float16)
    assert F.scaled_dot_product_attention is not own[0]
    amp.init(opt_level="O0")
    assert own == (F.scaled_dot_product_attention, torch.baddbmm)
