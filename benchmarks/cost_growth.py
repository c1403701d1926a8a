"""How the cost of a step grows with the number of processes: bytes that a rank sends, and that its tensors take.

Starts itself under torchrun for each number of processes and each way, and prints tables: what was measured beside what
the formula gives, and the formula for more processes than this machine has. Nothing here is timed.

Sent bytes are those that the operating system counted as written by a rank (``wchar`` of ``/proc/self/io``; gloo writes
to sockets of this machine). Memory is that of tensor storages, each once: parameters, gradients and optimizer states
between two steps, and the most that parameters take within one, looked at before each block runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import amp_runtime as amp
import torch
from timing import machine
from torch import nn

MIB = 2**20
COUNTERS = Path("/proc/self/io")
WAYS = ("ddp", "fsdp")
LEVELS = ("O0", "O1", "O2")
COMPUTED_FOR = (8, 16, 64, 256, 1024)
FLOAT, HALF = 4, 2


class Block(nn.Module):
    """Two layers around a residual, as in a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.inner(x)
        return out


def build(width: int, depth: int) -> nn.Module:
    """A model of equal blocks, and two layers besides."""
    return nn.Sequential(nn.Linear(16, width), *(Block(width) for _ in range(depth)), nn.Linear(width, 16))


# ---- one rank ------------------------------------------------------------------------------------------------------


def sent() -> int:
    """Bytes that this process has written so far."""
    line = next(line for line in COUNTERS.read_text().splitlines() if line.startswith("wchar"))
    return int(line.split()[1])


def held(tensors: Iterable[Any]) -> int:
    """Bytes of the storages of some tensors; of one that is shared out, of this rank's part."""
    own = [t.to_local() if hasattr(t, "to_local") else t for t in tensors if isinstance(t, torch.Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in own}.values())


def rank(way: str, level: str, width: int, depth: int, steps: int) -> dict[str, Any]:
    """Trains, and says what a step after the first costs."""
    amp.init(level, parallel=way, dtype="bf16", loss_scale=1.0)
    torch.manual_seed(0)
    model = amp.prepare_model(build(width, depth))
    optimizer = amp.optim.Adam(model.parameters(), lr=1e-4)
    masters = list(amp.master_params(optimizer))
    most = 0

    def look(module: nn.Module, given: Any) -> None:
        # What the blocks compute with at this moment, and the shards that the optimizer holds.
        nonlocal most
        seen = [p for part in model.modules() for p in part._parameters.values() if p is not None]
        most = max(most, held([*seen, *masters]))

    blocks = [part for part in model.modules() if isinstance(part, Block)]
    for block in blocks:
        block.inner.register_forward_pre_hook(look)
        block.inner.register_full_backward_pre_hook(look)
    costs = []
    for _ in range(steps + 1):
        amp.barrier()
        before = sent()
        optimizer.zero_grad()
        with amp.autocast():
            loss = model(torch.randn(8, 16)).float().square().mean()
        amp.scaler.scale(loss).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
        costs.append(sent() - before)
    parameters = [*model.parameters(), *masters]
    states = [t for state in optimizer.state.values() for t in state.values()]
    return {
        "sent": sorted(costs[1:])[len(costs[1:]) // 2],
        "weights": held(parameters),
        "gradients": held(p.grad for p in parameters),
        "states": held(states),
        "most": most,
    }


# ---- what is expected ----------------------------------------------------------------------------------------------


def expected(way: str, level: str, count: int, size: int, block: int) -> dict[str, float]:
    """Bytes by the formula.

    Args:
        way: ``ddp`` or ``fsdp``.
        level: the opt level.
        count: the number of processes.
        size: the number of parameters.
        block: that of the largest block.
    """
    others = (count - 1) / count
    unit = HALF if level == "O2" else FLOAT
    if way == "ddp" or count == 1:
        # At O2 the masters come on top; float32 gradients are there between steps only where nothing is exchanged.
        weights = size * (FLOAT + HALF if level == "O2" else FLOAT)
        return {
            "sent": 2 * others * size * unit,
            "weights": weights,
            "gradients": size * (FLOAT if count == 1 else unit),
            "states": 2 * size * FLOAT,
            "most": weights,
        }
    # The weights go round for the forward pass and again for the backward pass, the gradients once.
    return {
        "sent": 3 * others * size * unit,
        "weights": size * FLOAT / count,
        "gradients": size * FLOAT / count,
        "states": 2 * size * FLOAT / count,
        "most": size * FLOAT / count + block * unit,
    }


# ---- tables --------------------------------------------------------------------------------------------------------


def launched(count: int, way: str, level: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the ranks of one run say: the most of each number."""
    with tempfile.TemporaryDirectory() as folder:
        own = [__file__, "--rank", folder, "--way", way, "--level", level]
        own += ["--width", str(arguments.width), "--depth", str(arguments.depth), "--steps", str(arguments.steps)]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        done = subprocess.run(
            [*launcher, *own], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        found = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    return {name: max(one[name] for one in found) for name in found[0]}


def rows(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The table of what was measured, and that of what is computed."""
    model = build(arguments.width, arguments.depth)
    size = sum(p.numel() for p in model.parameters())
    block = max(sum(p.numel() for p in part.parameters()) for part in model.modules() if isinstance(part, Block))
    names = ("sent", "weights", "gradients", "states", "most")
    heads = ("sent a step", "weights", "gradients", "optimizer states", "most weights within a step")
    measured = [
        f"{size:,} parameters, {block:,} in each of {arguments.depth} blocks. MiB a rank, measured / by the formula.",
        "",
        "| processes | model | level | " + " | ".join(heads) + " |",
        "| ---: | --- | --- |" + " ---: |" * len(heads),
    ]
    for count in arguments.processes:
        for way in WAYS:
            for level in arguments.levels:
                found = launched(count, way, level, arguments)
                wanted = expected(way, level, count, size, block)
                cells = " | ".join(f"{found[name] / MIB:.2f} / {wanted[name] / MIB:.2f}" for name in names)
                kind = "sharded" if way == "fsdp" else "replicated"
                measured.append(f"| {count} | {kind} | {level} | {cells} |")
                print(measured[-1], file=sys.stderr, flush=True)
    computed = [
        "By the formula, in MiB a rank, of the same model.",
        "",
        "| processes | model | level | " + " | ".join(heads) + " |",
        "| ---: | --- | --- |" + " ---: |" * len(heads),
    ]
    for count in COMPUTED_FOR:
        for way in WAYS:
            for level in ("O1", "O2"):
                wanted = expected(way, level, count, size, block)
                cells = " | ".join(f"{wanted[name] / MIB:.2f}" for name in names)
                computed.append(f"| {count} | {'sharded' if way == 'fsdp' else 'replicated'} | {level} | {cells} |")
    return measured, computed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--levels", choices=LEVELS, nargs="+", default=list(LEVELS))
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5, help="steps of which the median counts, after a first one")
    parser.add_argument("--rank", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--level", choices=LEVELS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not COUNTERS.exists():
        raise SystemExit(f"{COUNTERS} is needed, which Linux has")
    if arguments.rank:
        found = rank(arguments.way, arguments.level, arguments.width, arguments.depth, arguments.steps)
        Path(arguments.rank, f"{amp.rank()}.json").write_text(json.dumps(found))
        return
    measured, computed = rows(arguments)
    print(machine("cpu"))
    print("\n## Measured\n\n" + "\n".join(measured))
    print("\n## Computed\n\n" + "\n".join(computed))


if __name__ == "__main__":
    main()
