"""Scripts of which some steps have mixed precision of their own: what is said of the others, and of their gradients."""

from __future__ import annotations

import textwrap

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

PLAIN = """
def plain(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
"""
MIXED = """
def mixed(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.amp.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
BY_SCALER = """
def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        if scaler is not None:
            with torch.amp.autocast("cuda"):
                loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
"""
STEP_BY_FLAG = """
def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.amp.autocast("cuda", enabled=FLAG):
            loss = nn.functional.mse_loss(model(x), y)
        if FLAG:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if FLAG:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
"""
CALIBRATED = """
def calibrated(logits, wanted):
    temperature = torch.ones(1, requires_grad=True)
    fit = torch.optim.LBFGS([temperature], lr=0.1)

    def closure():
        fit.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(logits / temperature, wanted)
        loss.backward()
        return loss

    fit.step(closure)
    return temperature.item()
"""


@pytest.fixture
def report(tmp_path):
    """Migrate a script of some functions, which ``main`` calls."""

    def made(functions, calls, flag="True"):
        (tmp_path / ".git").mkdir()
        head = f"""
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset

            FLAG = {flag}
            scaler = torch.amp.GradScaler("cuda")
            """
        main = """

            def main():
                model = nn.Linear(4, 1).cuda()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                loader = DataLoader(TensorDataset(torch.randn(80, 4), torch.randn(80, 1)), batch_size=8)
            """
        body = textwrap.indent(textwrap.dedent(calls), "    ")
        text = textwrap.dedent(head) + functions + textwrap.dedent(main) + body + "\n\nmain()\n"
        (tmp_path / "train.py").write_text(text)
        return migrate(tmp_path / "train.py", Options(ddp=True))

    return made


GIVEN = "(model, loader, optimizer)"


def test_a_step_without_beside_one_that_has_its_own_is_named(report):
    found = report(PLAIN + MIXED, f"plain{GIVEN}\nmixed{GIVEN}")
    assert (found.precision, found.distribution) == ("declined", "migrated")
    assert "this one has none (line 13)" in found.refusals[0].message


@pytest.mark.parametrize(
    ("functions", "calls"),
    [
        (PLAIN + MIXED, f"if FLAG:\n    mixed{GIVEN}\nelse:\n    plain{GIVEN}"),
        (PLAIN + MIXED, f"if FLAG:\n    mixed{GIVEN}\n    return\nplain{GIVEN}"),
        (PLAIN + MIXED, f"train = mixed if FLAG else plain\ntrain{GIVEN}"),
        (BY_SCALER, f"train{GIVEN}"),
        (STEP_BY_FLAG, f"train{GIVEN}"),
        (PLAIN + MIXED, f'with torch.amp.autocast("cuda"):\n    plain{GIVEN}\nmixed{GIVEN}'),
    ],
)
def test_a_step_that_runs_in_its_place_is_not(report, functions, calls):
    found = report(functions, calls)
    assert (found.precision, found.distribution) == ("already", "migrated")
    assert "delay_allreduce" not in found.changes[0].after


def test_a_step_of_a_number_beside_the_models_is_no_training_step(report):
    found = report(MIXED + CALIBRATED, f"mixed{GIVEN}\ncalibrated(torch.randn(8, 1), torch.rand(8, 1))")
    assert (found.precision, found.distribution) == ("already", "migrated")


def test_mixed_precision_of_an_npu_is_the_scripts_own(report):
    own = MIXED.replace('torch.amp.autocast("cuda")', "torch.npu.amp.autocast()")
    own = own.replace("    for x, y", "    scaler = torch.npu.amp.GradScaler()\n    for x, y")
    found = report(own, f"mixed{GIVEN}")
    assert found.precision == "already"
    assert "AMP192" not in {item.code for item in found.refusals}


PART = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

autocast = torch.cuda.amp.autocast


class Encoder(nn.Module):
    def __init__(self, mixed):
        super().__init__()
        self.mixed = mixed
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        with autocast(enabled=self.mixed):
            x = self.layer(x)
        return x.float()


model = nn.Sequential(Encoder("--mixed" in sys.argv), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for x, y in DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,))), batch_size=16):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SCALED = PART.replace("loss.backward", "scaler.scale(loss).backward").replace(
    "optimizer.step()", "scaler.step(optimizer)"
)


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        (PART.replace('scaler = torch.amp.GradScaler("cuda")\n', ""), "declined"),
        (SCALED, "already"),
        (PART.replace("enabled=self.mixed", ""), "already"),
        (PART.replace('scaler = torch.amp.GradScaler("cuda")\n', "").replace("enabled=", ""), "declined"),
    ],
)
def test_a_part_that_a_setting_lowers_is_no_precision_of_the_whole(text, precision, tmp_path):
    (tmp_path / "train.py").write_text(text)
    found = migrate(tmp_path / "train.py", Options(ddp=True))
    assert (found.precision, found.distribution) == (precision, "migrated")
    said = "self.mixed)` turns mixed precision on within the model where a setting says so"
    assert any(said in item.message for item in found.refusals) == (precision == "declined")
