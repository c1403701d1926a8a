"""Sharded models across numbers of processes, and the page about them."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import amp_runtime as amp
import pytest
from launching import Launcher

pytestmark = pytest.mark.heavy

PAGE = Path(__file__).parents[2] / "docs" / "sharding.md"
RUN = """
import json, os, sys
import torch
from torch import nn
import amp_runtime as amp

amp.init("O0", parallel=os.environ["PARALLEL"])
torch.manual_seed(0)
blocks = [nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 6)) for _ in range(3)]
model = amp.prepare_model(nn.Sequential(nn.Linear(5, 6), *blocks, nn.Linear(6, 3)))
optimizer = amp.optim.AdamW(model.parameters(), lr=1e-2)
ema = amp.EMA(model, 0.5)
if os.path.exists("run.pt"):
    amp.load_checkpoint("run.pt", model=model, optimizer=optimizer, ema=ema)
generator = torch.Generator().manual_seed(ema.updates)
losses = []
for step in range(3):
    x, y = torch.randn(8, 5, generator=generator), torch.randn(8, 3, generator=generator)
    share = slice(amp.rank() * 8 // amp.world_size(), (amp.rank() + 1) * 8 // amp.world_size())
    optimizer.zero_grad()
    loss = (model(x[share]) - y[share]).square().mean()
    amp.scaler.scale(loss).backward()
    amp.clip_grad_norm_(model.parameters(), 0.5)
    amp.scaler.step(optimizer)
    amp.scaler.update()
    ema.update()
    losses.append(amp.reduce_mean(loss.item()))
amp.save_checkpoint("run.pt", sharded="IN_PARTS" in os.environ, model=model, optimizer=optimizer, ema=ema)
print(json.dumps(losses))
"""


@pytest.mark.parametrize("environment", [{}, {"IN_PARTS": "1"}], ids=["file", "folder"])
def test_a_run_goes_on_sharded_and_whole_with_any_number_of_processes(
    launcher: Launcher, tmp_path: Path, environment: dict[str, str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(RUN.replace('"run.pt"', repr(str(tmp_path / "run.pt"))))

    def losses(ranks: int, parallel: str) -> list[float]:
        start = launcher.alone if ranks == 1 else lambda *args, **env: launcher.together(*args, ranks, **env)
        finished = start(script, tmp_path, PARALLEL=parallel, **environment)
        assert finished.returncode == 0, finished.stderr[-3000:]
        found: list[float] = json.loads(finished.stdout)
        return found

    whole = [loss for _ in range(4) for loss in losses(1, "ddp")]
    saved = tmp_path / "run.pt"
    assert saved.is_dir() == bool(environment)
    (tmp_path / "run.pt").rename(tmp_path / "whole.pt")
    found = [loss for ranks, how in ((4, "fsdp"), (2, "fsdp"), (2, "ddp"), (1, "fsdp")) for loss in losses(ranks, how)]
    assert found == pytest.approx(whole, rel=1e-5)


def test_one_process_has_no_shards(launcher: Launcher, tmp_path: Path) -> None:
    """To the last bit what a model is that nobody asked to shard."""
    script = tmp_path / "train.py"
    outputs = []
    for parallel in ("fsdp", "ddp"):
        script.write_text(RUN.replace('"run.pt"', repr(str(tmp_path / f"{parallel}.pt"))))
        outputs.append(launcher.alone(script, tmp_path, PARALLEL=parallel).stdout)
    assert outputs[0] == outputs[1] and outputs[0].startswith("[")


def test_a_torch_without_fully_shard_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from amp_runtime._distributed import sharding

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(sharding.importlib, "import_module", missing)
    with pytest.raises(RuntimeError, match=r"has no fully_shard.*allowed: torch 2\.4 or later"):
        sharding.engine()


# ---- the page -----------------------------------------------------------------------------------------------------


def rows() -> list[list[str]]:
    """The rows of the table of what works."""
    table = PAGE.read_text(encoding="utf-8").partition("## What works")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def keywords() -> set[str]:
    given = (amp.init, amp.prepare_model, amp.prepare_loader, amp.EMA)
    return {name for function in given for name in inspect.signature(function).parameters} | {
        "fused",
        "retain_graph",
        "create_graph",
    }


def found(name: str) -> bool:
    """Whether a dotted name leads to something."""
    first, *rest = name.split(".")
    at: Any = {
        "amp": amp,
        "model": __import__("torch").nn.Module,
        "optimizer": __import__("torch").optim.Optimizer,
    }.get(first) or importlib.import_module(first)
    path = first
    for part in rest:
        path = f"{path}.{part}"
        if not hasattr(at, part) and first not in ("amp", "model", "optimizer"):
            importlib.import_module(path)
        if not hasattr(at, part):
            return False
        at = getattr(at, part)
    return True


def test_the_table_says_of_each_row_what_is_so() -> None:
    assert len(rows()) > 30
    assert {row[1] for row in rows()} == {"works", "declined", "not noticed", "not tried"}


def test_the_names_in_the_table_exist() -> None:
    spans = [span for row in rows() for cell in row for span in re.findall(r"`([^`]+)`", cell)]
    names = [
        span.partition("(")[0] for span in spans if re.match(r"(amp|torch|amp_runtime|model|optimizer|copy)\.", span)
    ]
    assert len(names) > 25
    assert [name for name in names if not found(name)] == []
    given = [name for span in spans if (name := re.match(r"(\w+)=", span))]
    assert len(given) > 12
    assert [name[1] for name in given if name[1] not in keywords()] == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_blocks_of_the_page_run(ranks: int, launcher: Launcher, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    script = tmp_path / "page.py"
    script.write_text("import os\nos.chdir(os.environ['CHECK_DIR'])\n" + "\n".join(blocks))
    finished = launcher.alone(script, tmp_path) if ranks == 1 else launcher.together(script, tmp_path, ranks)
    assert finished.returncode == 0, finished.stderr[-3000:]
