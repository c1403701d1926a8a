"""What ``restarts.py`` trains and kills: it goes on from its last checkpoint, and writes down every step.

Each rank has a file of lines: one with its process for each start, and one for each step that it has made.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import amp_runtime as amp
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, SAMPLES, BATCH, RANKS = 3, 160, 4, 2
STEPS = EPOCHS * SAMPLES // (BATCH * RANKS)
EVERY = 7
PAUSE = 0.02  # seconds: between two steps there is time to look at what was written


def main(folder: Path) -> None:
    amp.init("O1", ddp=True, dtype="bf16")
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(SAMPLES, 16), torch.arange(SAMPLES))
    loader = amp.prepare_loader(DataLoader(data, batch_size=BATCH, shuffle=True))
    # Dropout: what is drawn at random has to go on where it was, too.
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 8))
    model = amp.prepare_model(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=11, gamma=0.8)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}
    epoch, step = 0, 0
    if (folder / "last.pt").exists():
        saved = amp.load_checkpoint(folder / "last.pt", **state)
        epoch, step = saved["epoch"], saved["step"]
    with open(folder / f"rank{amp.rank()}.jsonl", "a", encoding="utf-8") as file:

        def note(**values: Any) -> None:
            file.write(json.dumps(values) + "\n")
            file.flush()

        note(process=os.getpid(), after=step)
        for current in range(epoch, EPOCHS):
            for x, y in loader:
                optimizer.zero_grad()
                with amp.autocast():
                    loss = (model(x) - x[:, :8]).square().mean()
                amp.scaler.scale(loss).backward()
                amp.scaler.step(optimizer)
                amp.scaler.update()
                scheduler.step()
                step += 1
                note(step=step, epoch=current, samples=y.tolist(), loss=loss.item())
                if step % EVERY == 0:
                    amp.save_checkpoint(folder / "last.pt", **state, epoch=current, step=step)
                time.sleep(PAUSE)
    amp.save_checkpoint(folder / "end.pt", **state, step=step)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
