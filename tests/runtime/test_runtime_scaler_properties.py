"""The scaler against a simple model of it, on random histories."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import amp_runtime as amp
import pytest
import torch
from torch import nn

pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st
from properties import examples


@dataclass
class Reference:
    """Dynamic loss scaling as the papers describe it, for one loss and one optimizer."""

    scale: float
    interval: int
    floor: float
    ceiling: float
    good: int = 0
    weight: float = 0.0

    def step(self, gradient: float) -> bool:
        if not math.isfinite(gradient * self.scale):
            self.good, self.scale = 0, max(self.scale / 2, self.floor)
            return False
        self.weight -= gradient
        self.good += 1
        if self.good == self.interval:
            self.good, self.scale = 0, min(self.scale * 2, self.ceiling)
        return True


events = st.lists(st.sampled_from([1.0, 0.5, 0.0, float("inf"), float("-inf"), float("nan")]), max_size=40)


@given(
    events=events,
    interval=st.integers(1, 5),
    start=st.integers(-3, 20),
    unscale=st.booleans(),
    accumulate=st.integers(1, 3),
    combined=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_random_history_follows_the_reference(
    events: list[float], interval: int, start: int, unscale: bool, accumulate: int, combined: bool
) -> None:
    amp.shutdown()
    amp.init(
        "O1",
        dtype="fp16",
        init_scale=2.0**start,
        min_scale=2.0**-4,
        max_scale=2.0**20,
        growth_interval=interval,
        combine_grad=combined,
    )
    amp.scaler.max_skips = 1000
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    reference = Reference(2.0**start, interval, 2.0**-4, 2.0**20)
    skipped = 0
    for event in events:
        optimizer.zero_grad()
        for _ in range(accumulate):
            amp.scaler.scale((weight * (event / accumulate if math.isfinite(event) else event)).sum()).backward()
        if unscale:
            amp.scaler.unscale_(optimizer)
        amp.scaler.step(optimizer)
        amp.scaler.update()
        stepped = reference.step(event)
        skipped += not stepped
        assert amp.scaler.stepped is stepped
        assert amp.scaler.get_scale() == reference.scale
        assert weight.item() == pytest.approx(reference.weight, abs=1e-4)
    assert amp.scaler.skipped_steps == skipped


actions = st.lists(
    st.one_of(
        st.tuples(st.just("backward"), st.integers(0, 1), st.integers(0, 1)),
        st.tuples(st.just("unscale"), st.integers(0, 1)),
        st.tuples(st.just("step"), st.integers(0, 1)),
        st.tuples(st.just("zero"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("update")),
        st.tuples(st.just("rescale"), st.integers(0, 12)),
        st.tuples(st.just("clip"), st.integers(0, 1)),
    ),
    max_size=30,
)


@pytest.mark.heavy
@given(actions)
@settings(max_examples=examples(150), deadline=None)
def test_any_order_of_calls_gives_the_gradients_of_float32(script: list[Any]) -> None:
    """Two losses, two optimizers: whatever is called in whatever order, every step sees the true gradients."""
    amp.shutdown()
    amp.init("O1", dtype="fp16", num_losses=2, init_scale=2.0**6, growth_interval=2)
    weights = [amp.prepare_model(nn.Linear(1, 1, bias=False)) for _ in range(2)]
    for model in weights:
        nn.init.zeros_(model.weight)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for model in weights]
    true: list[float | None] = [None, None]
    expected = [0.0, 0.0]
    for number, (name, *arguments) in enumerate(script):
        which = arguments[0] if arguments else 0
        if name == "backward":
            loss = weights[which].weight.sum() * (number + 1) + 0 * sum(w.weight.sum() for w in weights)
            amp.scaler.scale(loss, loss_id=arguments[1]).backward()
            for k in range(2):
                true[k] = (true[k] or 0.0) + (number + 1 if k == which else 0)
        elif name == "unscale":
            amp.scaler.unscale_(optimizers[which])
        elif name == "clip":
            norm = amp.clip_grad_norm_(weights[which], 3.0).item()
            assert norm == pytest.approx(abs(true[which] or 0.0), rel=1e-4)
            if true[which]:
                true[which] = min(true[which] or 0.0, 3.0)
        elif name == "step":
            amp.scaler.step(optimizers[which])
            assert amp.scaler.stepped is (true[which] is not None)
            expected[which] -= true[which] or 0.0
        elif name == "zero":
            optimizers[which].zero_grad(set_to_none=arguments[1])
            true[which] = None if arguments[1] or true[which] is None else 0.0
        elif name == "rescale":
            amp.scaler.update(2.0**which)
        else:
            amp.scaler.update()
        for k in range(2):
            assert weights[k].weight.item() == pytest.approx(expected[k], rel=1e-4, abs=1e-5)
