"""The parts of ``runtime.py`` that take two processes; it starts this under torchrun."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import amp_runtime as amp
import torch
import torch.distributed as dist
import training
from timing import FULL, QUICK, Comparison, Effort, compare
from torch import nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.parallel import DistributedDataParallel

import runtime


class _TextbookSyncBatchNorm(nn.Module):
    """What one writes by hand, since torch's refuses CPU tensors: sums and sums of squares over the processes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, inputs: torch.Tensor) -> Any:
        norm: Any = self.norm
        count = inputs.numel() // inputs.shape[1] * dist.get_world_size()
        sums = torch.stack([inputs.sum((0, 2, 3)), inputs.square().sum((0, 2, 3))])
        mean, square = all_reduce(sums) / count  # type: ignore[no-untyped-call]
        variance = square - mean.square()
        with torch.no_grad():
            norm.running_mean.lerp_(mean, 0.1)
            norm.running_var.lerp_(variance * (count / (count - 1)), 0.1)
        scale = norm.weight * torch.rsqrt(variance + norm.eps)
        return inputs * scale[:, None, None] + (norm.bias - mean * scale)[:, None, None]


def syncbn(effort: Effort, device: str) -> list[Comparison]:
    compared = []
    for shape in ((16, 64, 16, 16), (16, 256, 4, 4)):
        channels = shape[1]
        contenders = [
            runtime.passes("nn.BatchNorm2d, not synchronised", nn.BatchNorm2d(channels), shape, device),
            runtime.passes("synchronised by hand", _TextbookSyncBatchNorm(channels), shape, device),
            runtime.passes("amp.SyncBatchNorm", amp.convert_sync_batchnorm(nn.BatchNorm2d(channels)), shape, device),
        ]
        if device == "cuda":
            contenders += [runtime.passes("torch.nn.SyncBatchNorm", nn.SyncBatchNorm(channels), shape, device)]
        case = f"two processes, {'x'.join(map(str, shape))} each"
        compared.append(compare(case, contenders, effort, device, together=True))
    return compared


def ddp(effort: Effort, device: str) -> list[Comparison]:
    tasks = [training.mlp(device, width=256), training.mlp(device), training.conv(device), training.chain(device, 160)]
    compared = []
    for task in tasks:
        contenders = [
            training.by_hand("torch DDP, FP32", task, wrap=_wrap),
            training.ours("amp_runtime O0", task, "O0", ddp=True, sync_bn=False),
        ]
        compared.append(compare(f"FP32, {task.name}", contenders, effort, device, together=True))
        contenders = [
            training.by_hand("torch DDP, autocast bf16", task, half=torch.bfloat16, wrap=_wrap),
            training.by_hand(
                "torch DDP, autocast bf16, GradScaler", task, half=torch.bfloat16, scaled=True, wrap=_wrap
            ),
            training.ours("amp_runtime O1", task, "O1", ddp=True, dtype="bf16", sync_bn=False),
            training.ours("amp_runtime O2", task, "O2", ddp=True, dtype="bf16", sync_bn=False),
        ]
        compared.append(compare(f"bf16, {task.name}", contenders, effort, device, together=True))
    return compared


def _wrap(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def combined(effort: Effort, device: str) -> list[Comparison]:
    return [runtime.combining(training.chain(device, size), effort, device, together=True) for size in (10, 160)]


PARTS: dict[str, Callable[[Effort, str], list[Comparison]]] = {"syncbn": syncbn, "ddp": ddp, "combined": combined}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=tuple(PARTS))
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("result", help="the JSON file to write")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    runtime.set_up(arguments.device, arguments.threads)
    enough = arguments.device == "cuda" and torch.cuda.device_count() > 1
    amp.init("O0", ddp=True, backend="nccl" if enough else "gloo")  # two ranks cannot share a GPU under NCCL
    compared: list[Any] = PARTS[arguments.part](QUICK if arguments.quick else FULL, arguments.device)
    if amp.is_main_process():
        with open(arguments.result, "w", encoding="utf-8") as file:
            json.dump([asdict(comparison) for comparison in compared], file)


if __name__ == "__main__":
    main()
