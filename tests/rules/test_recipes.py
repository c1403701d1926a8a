"""What a reason for declining advises must be right for what is declined."""

from __future__ import annotations

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

SUPERVISED = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(80, 4), torch.randn(80, 1)), batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y)
    TEST
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PLAYED = """\
import gymnasium
import torch
from torch import nn

env = gymnasium.make("CartPole-v1")
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state, _ = env.reset(RESET)
for step in range(100):
    scores = torch.distributions.Categorical(logits=model(torch.as_tensor(state)))
    action = scores.sample()
    state, reward, ended, cut, _ = env.step(action.item())
    loss = -scores.log_prob(action) * reward
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if ended or cut:
        break
"""


RENDERED = """\
import torch
from renderer import render
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = torch.zeros(4)
for step in range(100):
    rendered = render(model)
    loss = rendered["image"].square().mean()
    optimizer.zero_grad()
    loss.backward()
    points = rendered["points"]
    seen += points.grad.norm(dim=-1)
    optimizer.step()
"""


def reasons(tmp_path, text):
    """Message and recipe of each reason against several processes, by its code."""
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    found = migrate(path, Options(ddp=True)).refusals
    return {refusal.code: (refusal.message, refusal.recipe) for refusal in found if refusal.unit == "distribution"}


@pytest.mark.parametrize("test", ["if bool((y == 0).all()): continue", "if not (y > 0).any(): continue"])
def test_flags_are_not_averaged(tmp_path, test):
    _, recipe = reasons(tmp_path, SUPERVISED.replace("TEST", test))["AMP294"]
    assert "reduce_mean" not in recipe
    assert "amp.reduce_max(flag)" in recipe


def test_environments_that_nothing_seeds_are_not_the_same_everywhere(tmp_path):
    found = reasons(tmp_path, PLAYED.replace("RESET", ""))
    message, recipe = found["AMP291"]
    assert "same batches" not in message
    assert "environment of its own (`gymnasium.make" in message
    assert "DataLoader" not in recipe
    _, recipe = found["AMP294"]
    assert "reduce" not in recipe


def test_environments_with_a_seed_are_named_too(tmp_path):
    message, recipe = reasons(tmp_path, PLAYED.replace("RESET", "seed=1"))["AMP291"]
    assert "environment of its own (`gymnasium.make" in message
    assert "DataLoader" not in recipe


def test_a_gradient_that_no_optimizer_may_hold_is_unscaled_by_itself(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(RENDERED, encoding="utf-8")
    refusal = next(item for item in migrate(path, Options()).refusals if item.code == "AMP195")
    assert "it is not known whether an optimizer holds `points`" in refusal.message
    assert "`amp.scaler.unscale_gradients(points.grad)`" in refusal.recipe
