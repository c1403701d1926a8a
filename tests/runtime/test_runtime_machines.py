"""Several agents of torchrun, as one on each machine, and processes that die."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from launching import SECONDS, Launcher, environment_of, free_port

SCRIPT = """
import json, os, signal
from pathlib import Path
import amp_runtime as amp
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

amp.init("O0", ddp=True)
torch.manual_seed(3)
folder = Path(os.environ["CHECK_DIR"])
data = TensorDataset(torch.randn(48, 6), torch.arange(48))
loader = amp.prepare_loader(DataLoader(data, batch_size=3, shuffle=True))
model = amp.prepare_model(nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
done = {"step": 0}
state = {"model": model, "optimizer": optimizer, "loader": loader}
start, step = 0, 0
if (folder / "last.pt").exists():
    saved = amp.load_checkpoint(folder / "last.pt", **state)
    start, step = saved["epoch"], saved["step"]
kill = json.loads(os.environ.get("KILL", "null"))
seen = []
for epoch in range(start, 2):
    for x, y in loader:
        if kill == [amp.rank(), step] and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        amp.scaler.scale(loss).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
        step += 1
        seen.append([epoch, step, y.tolist(), loss.item()])
        if step % 3 == 0:
            amp.save_checkpoint(folder / "last.pt", **state, epoch=epoch, step=step)
seen = amp.gather(torch.tensor([value for *_, value in seen]).double().sum())
if amp.is_main_process():
    weights = [value for parameter in model.parameters() for value in parameter.flatten().tolist()]
    (folder / "weights.json").write_text(json.dumps([step, weights]))
"""


def agents(script: Path, directory: Path, count: int, *options: str, **variables: str) -> list[str]:
    """What each agent of torchrun wrote to standard error; each has one process."""
    place = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "one"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(count), "--nproc-per-node", "1"]
    started = [
        subprocess.Popen(
            [*command, *place, "--local-addr", "127.0.0.1", *options, str(script)],
            env=environment_of(directory) | variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        errors = [agent.communicate(timeout=SECONDS)[1] for agent in started]
    finally:
        for agent in started:
            agent.kill()
    assert [agent.returncode for agent in started] == [0] * count, "\n".join(errors)[-6000:]
    return errors


def weights(directory: Path) -> list[object]:
    found: list[object] = json.loads((directory / "weights.json").read_text())
    return found


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def expected(script: Path, tmp_path: Path, launcher: Launcher) -> list[object]:
    """The weights of two processes under one agent that nothing disturbs."""
    (tmp_path / "quiet").mkdir()
    finished = launcher.together(script, tmp_path / "quiet")
    assert finished.returncode == 0, finished.stderr[-3000:]
    return weights(tmp_path / "quiet")


@pytest.mark.slow
def test_two_machines_train_what_one_does(script: Path, tmp_path: Path, expected: list[object]) -> None:
    agents(script, tmp_path, 2)
    assert weights(tmp_path) == expected


@pytest.mark.slow
def test_a_killed_process_costs_what_came_after_the_last_checkpoint(
    script: Path, tmp_path: Path, expected: list[object]
) -> None:
    killed = [random.Random(str(tmp_path)).randrange(2), random.Random(str(tmp_path)).randrange(1, 15)]
    agents(script, tmp_path, 2, "--max-restarts", "2", KILL=json.dumps(killed))
    assert (tmp_path / "killed").exists(), killed
    assert weights(tmp_path) == expected, killed
