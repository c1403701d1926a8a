"""A script that goes on from its last checkpoint, and may kill one of its processes once; and what starts it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from launching import SECONDS, environment_of

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


def all_of(starts: Sequence[tuple[list[str], dict[str, str]]], directory: Path) -> list[str]:
    """What commands that run at the same time, with variables of their own, wrote to standard error; all succeed."""
    started = [
        subprocess.Popen(
            command,
            cwd=directory,
            env=environment_of(directory) | variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, variables in starts
    ]
    try:
        errors = [process.communicate(timeout=SECONDS)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(errors)[-6000:]
    return errors


def weights(directory: Path) -> list[object]:
    found: list[object] = json.loads((directory / "weights.json").read_text())
    return found
