"""The memory that training at one level takes, as JSON in MiB; ``runtime.py`` starts it."""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import amp_runtime as amp
import torch
import training
from torch import nn

import runtime

MIB = 2**20
STATUS = Path("/proc/self/status")


def _bytes(tensors: Iterable[Any]) -> float:
    """Memory of the tensors among some objects; what several of them share counts once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if torch.is_tensor(t)}
    return sum(storages.values()) / MIB


def _peak(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / MIB
    if STATUS.exists():  # what getrusage says begins with the peak of the process that started this one
        return _of_status("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (MIB if sys.platform == "darwin" else 1024)


def _held(device: str) -> float:
    """What is in use now, where the system tells, else the peak."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / MIB
    return _of_status("VmRSS") if STATUS.exists() else _peak(device)


def _of_status(name: str) -> float:
    """A number that Linux gives in KiB."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def train(level: str, task: training.Task, steps: int) -> dict[str, float]:
    """Trains for some steps and adds up what is held at the end of the last one."""
    device = task.inputs.device.type
    by_hand = level.startswith("torch")
    model = task.build() if by_hand else amp.prepare_model(task.build())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    region: Any = torch.autocast(device, torch.bfloat16, enabled="autocast" in level)
    gradients = 0.0
    for _ in range(steps):
        optimizer.zero_grad()
        with region if by_hand else amp.autocast():
            loss = nn.functional.cross_entropy(model(task.inputs), task.targets)
        amp.scaler.scale(loss).backward()
        gradients = _bytes(parameter.grad for parameter in model.parameters())
        amp.scaler.step(optimizer)
        amp.scaler.update()
    own = {id(parameter) for parameter in model.parameters()}
    masters = [master for master in amp.master_params(optimizer) if id(master) not in own]
    shown = {id(master) for master in masters}
    state = [value for entry in optimizer.state.values() for value in entry.values() if id(value) not in shown]
    return {
        "weights": _bytes(model.parameters()),
        "gradients": gradients,
        "state": _bytes(state),
        "masters": _bytes(masters),
    }


def measure(level: str, task: training.Task) -> dict[str, float]:
    """What a few steps hold, and the peak beyond what was held before."""
    device = task.inputs.device.type
    start = _held(device)
    sizes = train(level, task, steps=3)
    return {**sizes, "peak": _peak(device) - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("level", choices=("torch FP32", "torch autocast", "O0", "O1", "O2", "O3"))
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    level, device, quick = arguments.level, arguments.device, arguments.quick
    runtime.set_up(device, arguments.threads)
    if not level.startswith("torch"):
        amp.init(level, dtype=torch.bfloat16)
    for warming in (training.mlp(device, 16, depth=1, batch=2), training.conv(device, 4, size=4, batch=2)):
        train(level, warming, steps=2)  # for what torch loads once
    dense = measure(level, training.mlp(device, 64 if quick else 1024, depth=8, batch=8 if quick else 256))
    # Later, because a process's peak never falls; it takes more than the first.
    convolutional = measure(level, training.conv(device, size=8 if quick else 64, batch=8 if quick else 96))
    print(json.dumps([dense, convolutional]))


if __name__ == "__main__":
    main()
