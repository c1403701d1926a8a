"""A script under plain autocast by interception computes what it does when autocast and scaler are written in it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from amp_migrate.commands.migrate import main
from amp_migrate.verify import runs
from amp_migrate.verify.checks import runs as checks_runs
from amp_migrate.verify.plan import PLAIN_AMP
from amp_migrate.verify.traces import RankTrace
from amp_runtime._precision.cast_tables import CUDA_FLOAT
from click.testing import CliRunner
from forked import Forked
from recording import Record

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
]

PLAIN = """
torch.manual_seed(3)
targets = data.tensors[0] @ torch.randn(6, 1)
assert targets.dtype is torch.float32
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=4, shuffle=True):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
    with torch.no_grad():
        model(data.tensors[0])
"""
BY_HAND = """
torch.manual_seed(3)
targets = data.tensors[0] @ torch.randn(6, 1)
scaler = torch.amp.GradScaler("cpu", enabled={half} is torch.float16)
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=4, shuffle=True):
        optimizer.zero_grad()
        with torch.autocast("cpu", {half}, cache_enabled=False):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        scaler.step(optimizer)
        scaler.update()
"""
ACCUMULATED = """
for number, (x, y) in enumerate(DataLoader(data, batch_size=4)):
    {loss}
    {backward}
    if number % 2:
        {step}
        optimizer.zero_grad()
"""


def losses(rank: RankTrace) -> list[float]:
    return [step.loss for step in rank.backwards]


def norms(rank: RankTrace) -> list[float]:
    return [update.norm for update in rank.updates]


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_it_computes_what_autocast_and_scaler_written_by_hand_do(record: Record, half: str) -> None:
    types = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
    found = record(PLAIN, plain_amp=half).rank
    expected = record(BY_HAND.format(half=types[half]), folder="by_hand").rank
    full = record(PLAIN, folder="full").rank
    assert losses(found) == losses(expected) != losses(full)
    assert norms(found) == norms(expected)
    assert found.parameters == expected.parameters != full.parameters
    assert found.backwards[0].half and not found.backwards[0].full
    assert found.skipped == expected.skipped


def test_gradients_are_accumulated_and_may_be_read_anywhere(record: Record) -> None:
    parts = {
        "loss": "loss = F.mse_loss(model(x), y) / 2",
        "backward": "loss.backward(); print(model[0].weight.grad.abs().max().item())",
        "step": "optimizer.step()",
    }
    by_hand = {
        "loss": "with torch.autocast('cpu', torch.float16): loss = F.mse_loss(model(x), y) / 2",
        "backward": "scaler.scale(loss).backward()",
        "step": "scaler.step(optimizer); scaler.update()",
    }
    run = record(ACCUMULATED.format(**parts), plain_amp="fp16")
    expected = record("scaler = torch.amp.GradScaler('cpu')" + ACCUMULATED.format(**by_hand), folder="by_hand")
    assert losses(run.rank) == losses(expected.rank)
    assert norms(run.rank) == norms(expected.rank)
    assert max(map(float, run.stdout.split())) < 100


def test_a_weight_that_is_used_several_times_is_cast_once(record: Record) -> None:
    """Its gradients are summed in half then, and may overflow there."""
    body = """
    weight = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(weight.parameters(), lr=1e-3)
    with torch.no_grad():
        weight(torch.ones(1, 1))
    for number in range(3):
        optimizer.zero_grad()
        loss = sum(weight(torch.full((1, 1), 0.4)).float() for _ in range(4)).sum()
        loss.backward()
        optimizer.step()
    """
    rank = record(body, plain_amp="fp16").rank
    by_hand = dedent(body).replace("loss = ", "with torch.autocast('cpu', torch.float16): loss = ")
    by_hand = by_hand.replace("loss.backward()", "scaler.scale(loss).backward()")
    by_hand = by_hand.replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
    expected = record("scaler = torch.amp.GradScaler('cpu')\n" + dedent(by_hand), folder="by_hand").rank
    assert rank.skipped == expected.skipped == 1
    assert losses(rank) == losses(expected)


def test_steps_on_gradients_that_are_not_finite_are_skipped_and_the_scale_falls(record: Record) -> None:
    body = """
    weight = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(weight.parameters(), lr=1e-3)
    for number in range(4):
        optimizer.zero_grad()
        loss = weight(torch.full((1, 1), 3.0)).sum()
        loss.backward()
        optimizer.step()
    """
    rank = record(body, plain_amp="fp16").rank
    by_hand = dedent(body).replace("loss = ", "with torch.autocast('cpu', torch.float16): loss = ")
    by_hand = by_hand.replace("loss.backward()", "scaler.scale(loss).backward()")
    by_hand = by_hand.replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
    expected = record("scaler = torch.amp.GradScaler('cpu')\n" + by_hand, folder="by_hand").rank
    assert rank.skipped == 2
    assert (rank.skipped, losses(rank)) == (expected.skipped, losses(expected))


def test_gradients_of_what_no_optimizer_knows_are_unscaled(record: Record) -> None:
    body = """
    x = torch.ones(4, 6, requires_grad=True)
    model(x).float().pow(2).mean().backward()
    print(x.grad.abs().max().item())
    """
    scaled, plain = record(body, plain_amp="fp16"), record(body, folder="plain")
    assert float(scaled.stdout) == pytest.approx(float(plain.stdout), rel=0.05)


def test_autocast_is_off_where_no_loss_is_computed(record: Record) -> None:
    body = """
    def type_now(*_):
        return str((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)[6:]

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            types.add(("data", type_now()))
            return torch.ones(6), torch.ones(1)

    types = set()
    real = torch.optim.SGD.step
    optimizer.register_step_pre_hook(lambda *_: types.add(("step", type_now())) and None)
    for x, y in DataLoader(Data(), batch_size=2):
        out = model(x)
        types.add(("loss", type_now()))
        loss = F.mse_loss(out, y)
        out.register_hook(lambda gradient: types.add(("backward", type_now())) and None)
        (gradient,) = torch.autograd.grad(loss, out, retain_graph=True)
        loss.backward()
        types.add(("after", type_now()))
        optimizer.step()
        with torch.no_grad():
            types.add(("evaluation", str(model(x).dtype)[6:]))
            types.add(("metric", type_now()))
    print(sorted(types))
    """
    expected = {
        *(("data", "float32"), ("loss", "bfloat16"), ("backward", "float32"), ("after", "float32")),
        *(("step", "float32"), ("evaluation", "bfloat16"), ("metric", "float32")),
    }
    run = record(body, plain_amp="bf16")
    assert run.rank.backwards
    assert run.stdout.strip() == str(sorted(expected))


def test_what_torch_refuses_under_autocast_runs_in_float32(record: Record) -> None:
    body = """
    loss = nn.BCELoss()(torch.sigmoid(model(data.tensors[0])), torch.zeros(32, 1))
    loss.backward()
    """
    (step,) = record(body, plain_amp="bf16").rank.backwards
    assert step.half


def test_an_evaluation_may_give_a_loss_half_and_float32(record: Record) -> None:
    body = """
    F.mse_loss(model(data.tensors[0]), torch.zeros(32, 1)).backward()
    with torch.no_grad():
        print(F.binary_cross_entropy(model(data.tensors[0]).sigmoid(), torch.zeros(32, 1)).dtype)
    """
    assert record(body, plain_amp="bf16").stdout == "torch.float32\n"


def test_what_is_computed_in_half_may_be_taken_to_numpy(record: Record) -> None:
    body = """
    output = model(data.tensors[0])
    output.square().mean().backward()
    print(output.dtype, output.detach().numpy().dtype, output.tolist() == output.detach().numpy().tolist())
    """
    assert record(body, plain_amp="bf16").stdout == "torch.bfloat16 float32 True\n"


def test_a_cpu_computes_in_float32_what_a_gpu_does(record: Record) -> None:
    body = """
    classes = torch.arange(32) % 3
    model = nn.Sequential(nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        loss = F.nll_loss(torch.log_softmax(model(data.tensors[0]), 1), classes)
        loss.backward()
        optimizer.step()
    """
    by_hand = dedent(body).replace(
        "loss = F.nll_loss(torch.log_softmax(model(data.tensors[0]), 1), classes)",
        "with torch.autocast('cpu', torch.bfloat16, cache_enabled=False): logits = model(data.tensors[0])\n"
        "    loss = F.nll_loss(torch.log_softmax(logits.float(), 1), classes)",
    )
    assert losses(record(body, plain_amp="bf16").rank) == losses(record(by_hand, folder="by_hand").rank)


def test_what_a_gpu_computes_in_float32_is_what_the_runtime_computes_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(runs.RECORDER)
    from amp_verify_recorder.like_a_gpu import FLOAT32

    assert {name.replace(".", "_") for name in CUDA_FLOAT} == FLOAT32


# ---- in whole verifications ------------------------------------------------------------------------------------------

LSTM = """
import torch
from torch import nn

torch.manual_seed(0)
model, head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
for step in range(12):
    x = torch.randn(4, 5, 4)
    optimizer.zero_grad()
    states, _ = model(x)
    loss = (head(states[:, -1]) - x.sum((1, 2)).unsqueeze(1)).square().mean()
    loss.backward()
    optimizer.step()
"""
HANGING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=4, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""
WAITING = """\
    if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
        torch.distributed.recv(torch.zeros(1), 0)
    optimizer.zero_grad()
"""


@pytest.fixture
def verified(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What ``amp-migrate verify`` finds out about a script, and about a migrated version that is given."""
    monkeypatch.setattr(runs, "run_together", forked.run_together)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def verify(text: str, edit: tuple[str, str] | None, *options: str) -> dict[str, Any]:
        project, migrated = tmp_path / "project", tmp_path / "migrated"
        given = ["--migrated", str(migrated / "train.py")] if edit else []
        for folder in (project, migrated):
            folder.mkdir()
            (folder / "train.py").write_text(text)
        if edit:
            path = migrated / "train.py"
            assert CliRunner().invoke(main, [str(path), "--ddp", "-w", "--quiet"]).exit_code == 0
            assert path.read_text().count(edit[0]) == 1
            path.write_text(path.read_text().replace(*edit))
        monkeypatch.chdir(project)
        result = CliRunner().invoke(main, ["verify", "train.py", "--format", "json", "--quiet", *options, *given])
        return json.loads(result.stdout)

    return verify


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="oneDNN's variable is for x86")
def test_a_bfloat16_lstm_that_this_processor_lacks_disproves_nothing(
    verified: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    evidence = verified(LSTM, None, "--procs", "1", "--levels", "O1")
    found = {run["name"]: run for run in evidence["runs"]}
    assert "LSTM" in found[PLAIN_AMP]["error"], "torch has learnt it: what is this simulation for?"
    assert evidence["verdict"] == "proved", evidence["checks"]


@pytest.mark.campaign
def test_processes_that_hang_are_wrong(verified: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_runs, "_PATIENCE", 5)
    evidence = verified(HANGING, ("    optimizer.zero_grad()\n", WAITING), "--levels", "O0", "--timeout", "120")
    (check,) = [item for item in evidence["checks"] if item["id"] == "runs"]
    assert (check["verdict"], "wait for each other" in check["message"]) == ("disproved", True), check
