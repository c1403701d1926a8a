"""Accuracy, size and speed of int8 models beside float32: three models that are trained here, over several seeds.

    pip install scikit-learn torchao
    OMP_NUM_THREADS=1 python benchmarks/quantization.py [--seeds 5] [--models digits,words,wide]

Digits are those that scikit-learn ships with; the other two models get data that are made here. ``digits`` is a
convnet, ``words`` a transformer whose projections are linear layers, ``wide`` a wide and deep model. Compiled models
are those of the first seed, by ``torch.compile`` with constants folded in (``TORCHINDUCTOR_FREEZING=1`` by hand); that
needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

import amp_runtime as amp
import torch
import torch._inductor.config as inductor
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

KINDS = ("dynamic", "static", "qat")
EPOCHS = {"digits": 10, "words": 6, "wide": 6}
BATCHES = 16  # for calibration


class Digits(nn.Module):
    """8 x 8 images; 0.3 million weights. Without batch norm, whose patterns torchao traces for minutes in ``qat``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.hidden, self.out = nn.Linear(64 * 16, 256), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.second(F.relu(self.first(x)))), 2)
        return self.out(F.dropout(F.relu(self.hidden(x.flatten(1))), 0.3, self.training))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.back = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        parts = [
            layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        ]
        x = x + self.back(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Words(nn.Module):
    """Which of eight tokens is the most frequent in a text of 12."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 96)
        self.blocks = nn.ModuleList(Block(96, 4) for _ in range(2))
        self.out = nn.Linear(96, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.out(x.mean(1))


class Wide(nn.Module):
    """Clicks: three columns of two hundred values each, and their crossing."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(200, 16) for _ in range(3))
        self.wide = nn.Embedding(200, 2)
        for table in (*self.tables, self.wide):
            nn.init.normal_(table.weight, std=0.1)
        self.deep = nn.Sequential(nn.Linear(48, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        deep = torch.cat([table(columns[:, i]) for i, table in enumerate(self.tables)], 1)
        return self.deep(deep) + self.wide((columns[:, 0] * 7 + columns[:, 1]) % 200)


def digits(seed: int) -> tuple[TensorDataset, TensorDataset]:
    from sklearn.datasets import load_digits

    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    return divided(x, torch.tensor(data.target), seed)


def words(seed: int) -> tuple[TensorDataset, TensorDataset]:
    generator = torch.Generator().manual_seed(seed)
    likely = torch.distributions.Dirichlet(torch.full((8,), 2.0))
    torch.manual_seed(seed)
    x = torch.multinomial(likely.sample((3000,)), 12, replacement=True, generator=generator)
    return divided(x, F.one_hot(x, 8).sum(1).argmax(1), seed)


def wide(seed: int) -> tuple[TensorDataset, TensorDataset]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(200, (24000, 3), generator=generator)
    taste = torch.randn(3, 200, generator=generator)
    score = taste[0][x[:, 0]] + taste[1][x[:, 1]] * taste[2][x[:, 2]].sign()
    return divided(x, (score > 0).long(), seed)


def divided(x: torch.Tensor, y: torch.Tensor, seed: int) -> tuple[TensorDataset, TensorDataset]:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    cut = len(x) * 3 // 4
    return TensorDataset(x[order[:cut]], y[order[:cut]]), TensorDataset(x[order[cut:]], y[order[cut:]])


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[TensorDataset, TensorDataset]]]] = {
    "digits": (Digits, digits),
    "words": (Words, words),
    "wide": (Wide, wide),
}


def train(model: nn.Module, loader: DataLoader, epochs: int, rate: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    for epoch in range(epochs):
        model.train()
        if isinstance(model, amp.PreparedModel) and epoch == epochs - 1:
            model.freeze_observers()
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def accuracy(model: nn.Module, held_out: TensorDataset) -> float:
    model.eval()
    x, y = held_out.tensors
    return 100 * float((torch.cat([model(part) for part in x.split(256)]).argmax(1) == y).float().mean())


@torch.no_grad()
def times_faster(
    quantized: Callable[..., object], model: Callable[..., object], x: torch.Tensor, turns: int = 12
) -> float:
    """By the shortest of several batches, taken in turns: what else the machine does only adds."""
    shortest = [math.inf, math.inf]
    for _ in range(turns):
        for i, each in enumerate((quantized, model)):
            start = time.perf_counter()
            each(x)
            shortest[i] = min(shortest[i], time.perf_counter() - start)
    return shortest[1] / shortest[0]


@torch.no_grad()
def compiled(model: nn.Module, x: torch.Tensor) -> Callable[..., object]:
    with inductor.patch(freezing=True):
        made: Callable[..., object] = torch.compile(model)
        made(x)
    return made


def file_size(save: Callable[[str], object]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt")
        save(path)
        return os.path.getsize(path)


def one_seed(name: str, seed: int) -> dict[str, dict[str, float]]:
    make, data = MODELS[name]
    torch.manual_seed(seed)
    model = make()
    training, held_out = data(seed)
    loader = DataLoader(training, batch_size=64, shuffle=True, drop_last=True)
    train(model, loader, EPOCHS[name], 2e-3)
    x = held_out.tensors[0][:64]
    weights = sum(p.numel() * p.element_size() for p in [*model.parameters(), *model.buffers()])
    whole = file_size(lambda path: torch.save(model.state_dict(), path))
    rows = {
        "float32": {"accuracy": accuracy(model, held_out), "weights": 1.0, "file": 1.0, "speed": 1.0, "compiled": 1.0}
    }
    fast = compiled(model, x) if seed == 0 else None
    for kind in KINDS:
        if kind == "qat":
            prepared = amp.quantize(model, "qat", calibration=loader)
            train(prepared, loader, 2, 2e-4)
            quantized = amp.convert_quantized(prepared)
        else:
            quantized = amp.quantize(model, kind, calibration=loader, batches=BATCHES)
        rows[kind] = {
            "accuracy": accuracy(quantized, held_out),
            "weights": quantized.bytes / weights,
            "file": file_size(lambda path, made=quantized: amp.save_quantized(made, path)) / whole,
            "speed": times_faster(quantized, model.eval(), x),
        }
        if fast is not None:
            rows[kind]["compiled"] = times_faster(compiled(quantized, x), fast, x, 60)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", default="digits,words,wide")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "",
    )
    print(f"- {date.today()}, {cpu}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s)")
    print(f"- torch {torch.__version__}, torchao {version('torchao')}, Python {sys.version.split()[0]}")
    print(f"- load average at the start: {os.getloadavg()[0]:.1f}; seeds: {options.seeds}\n")
    print("| model | kind | accuracy, % | less than float32 | most of a seed | weights | file | speed | compiled |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for name in options.models.split(","):
        with contextlib.redirect_stdout(io.StringIO()):
            seeds = []
            for seed in range(options.seeds):
                seeds.append(one_seed(name, seed))
                print(name, seed, seeds[-1], file=sys.stderr)
        for kind in ("float32", *KINDS):
            found = [seed[kind] for seed in seeds]
            values = [row["accuracy"] for row in found]
            lost = [seed["float32"]["accuracy"] - seed[kind]["accuracy"] for seed in seeds]
            weights, file, speed = (statistics.mean(row[key] for row in found) for key in ("weights", "file", "speed"))
            print(
                f"| {name} | {kind} | {statistics.mean(values):.2f} ± {statistics.pstdev(values):.2f} | "
                f"{statistics.mean(lost):.2f} | {max(lost):.2f} | {weights:.2f} x | {file:.2f} x | {speed:.2f} x | "
                f"{found[0]['compiled']:.2f} x |",
                flush=True,
            )


if __name__ == "__main__":
    main()
