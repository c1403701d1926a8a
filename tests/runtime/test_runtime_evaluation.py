"""Alone, an evaluation that is shared out is the loop as it was written."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import amp_runtime as amp  # noqa: E402


def test_alone_the_loader_itself_is_iterated_and_values_stay_as_they_are() -> None:
    amp.init("O0", ddp=True)
    loader = torch.utils.data.DataLoader(torch.arange(7), batch_size=2, shuffle=True)
    assert amp.share_evaluation(loader) is loader
    hits, scores = torch.tensor(3), [1, 2]
    assert amp.sum_evaluated(hits) is hits
    assert amp.sum_evaluated(hits, 0.5)[0] is hits
    assert amp.gather_evaluated(scores) is scores


def test_alone_no_random_number_is_drawn() -> None:
    amp.init("O0", ddp=True)
    before = torch.get_rng_state()
    amp.share_evaluation(torch.utils.data.DataLoader(torch.arange(7), shuffle=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_no_list_is_refused_alone_too() -> None:
    with pytest.raises(TypeError, match=r"amp\.gather_evaluated got Tensor; allowed: lists"):
        amp.gather_evaluated(torch.ones(2))
