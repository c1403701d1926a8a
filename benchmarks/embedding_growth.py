"""What tables whose rows are shared out cost a rank: memory, and bytes sent in a step, beside whole tables under DDP.

Starts itself under torchrun for each number of processes and each table, and prints tables. Nothing here is timed.

Memory is that of tensor storages, each once: the table's parameter, its gradient and the optimizer's state, after a
step. Sent bytes are those that the operating system counted as written by a rank (``wchar`` of ``/proc/self/io``; gloo
writes to sockets of this machine), the median of the steps after the first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import amp_runtime as amp
import torch
from cost_growth import held, sent
from timing import machine
from torch import nn

MIB, KIB = 2**20, 2**10
WAYS = ("shared out, sparse", "shared out", "whole")


class WideAndDeep(nn.Module):
    """A table of bags of identifiers, and a dense part."""

    def __init__(self, rows: int, width: int, sparse: bool) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(rows, width, mode="mean", sparse=sparse)
        self.deep = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, identifiers: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.deep(self.table(identifiers))
        return out


def rank(way: str, rows: int, width: int, batch: int, steps: int) -> dict[str, Any]:
    """Trains, and says what it costs."""
    amp.init("O0", ddp=True)
    torch.manual_seed(0)
    sparse = way.endswith("sparse")
    model: Any = WideAndDeep(rows, width, sparse)
    if way != "whole":
        amp.shard_embedding(model)
    table = list(model.table.parameters())
    model = amp.prepare_model(model)
    kind = torch.optim.SparseAdam if sparse else torch.optim.Adam
    optimizers = [kind(table, lr=1e-3), torch.optim.Adam(model.deep.parameters(), lr=1e-3)]
    generator = torch.Generator().manual_seed(amp.rank())
    costs = []
    for _ in range(steps + 1):
        identifiers = torch.randint(rows, (batch, 4), generator=generator)
        amp.barrier()
        before = sent()
        for optimizer in optimizers:
            optimizer.zero_grad()
        amp.scaler.scale(model(identifiers).square().mean()).backward()
        for optimizer in optimizers:
            amp.scaler.step(optimizer)
        amp.scaler.update()
        costs.append(sent() - before)
    gradients = [p.grad for p in table if p.grad is not None]
    parts = [part for g in gradients for part in ((g._indices(), g._values()) if g.is_sparse else (g,))]
    states = [value for p in table for value in optimizers[0].state[p].values()]
    return {
        "sent": sorted(costs[1:])[len(costs[1:]) // 2],
        "weights": held(table),
        "gradients": held(parts),
        "states": held(states),
    }


def launched(count: int, way: str, rows: int, width: int, batch: int, steps: int) -> dict[str, Any]:
    """What the ranks of one run say: the most of each number."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = {"rows": rows, "width": width, "batch": batch, "steps": steps}
        own = [__file__, "--rank", folder, "--way", way, *(f"--{name}={value}" for name, value in numbers.items())]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        done = subprocess.run(
            [*launcher, *own], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        found = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    return {name: max(one[name] for one in found) for name in found[0]}


def memory(arguments: argparse.Namespace) -> list[str]:
    """How a rank's memory falls with the number of ranks."""
    lines = [
        f"MiB a rank, tables of width {arguments.width}, {arguments.batch} samples of 4 identifiers on each rank.",
        "",
        "| rows | processes | table | weights | gradient | optimizer state |",
        "| ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for rows in arguments.tables:
        for count in arguments.processes:
            for way in WAYS if count > 1 else WAYS[2:]:
                found = launched(count, way, rows, arguments.width, arguments.batch, 1)
                cells = " | ".join(f"{found[name] / MIB:.2f}" for name in ("weights", "gradients", "states"))
                lines.append(f"| {rows:,} | {count} | {way} | {cells} |")
                print(lines[-1], file=sys.stderr, flush=True)
    return lines


def traffic(arguments: argparse.Namespace) -> list[str]:
    """What a step sends, against the batch, the width and the size of the table."""
    count = arguments.processes[-1]
    lines = [
        f"KiB that a rank sends in a step, {count} processes; 4 identifiers a sample.",
        "",
        "| rows | width | samples on each rank | shared out | whole |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    first, width, batch = arguments.tables[0], arguments.width, arguments.batch
    cases = [(rows, width, batch) for rows in arguments.tables]
    cases += [
        (first, 2 * width, batch),
        (first, 4 * width, batch),
        (first, width, 2 * batch),
        (first, width, 4 * batch),
    ]
    for rows, wide, samples in cases:
        found = [launched(count, way, rows, wide, samples, arguments.steps)["sent"] / KIB for way in WAYS[1:]]
        lines.append(f"| {rows:,} | {wide} | {samples} | {found[0]:,.0f} | {found[1]:,.0f} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--tables", type=int, nargs="+", default=[10**5, 10**6, 10**7], help="their numbers of rows")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        found = rank(arguments.way, arguments.rows, arguments.width, arguments.batch, arguments.steps)
        (Path(arguments.rank) / f"{amp.rank()}.json").write_text(json.dumps(found))
        return
    print(f"{machine('cpu')}\n")
    print("\n".join([*traffic(arguments), "", *memory(arguments)]))


if __name__ == "__main__":
    main()
