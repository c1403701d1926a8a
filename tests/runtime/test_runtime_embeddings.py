"""Tables whose rows are shared out: a wide and deep model across numbers of processes, and the page about it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import amp_runtime as amp
import pytest
import torch
from launching import Launcher
from torch import nn

pytestmark = pytest.mark.heavy

PAGE = Path(__file__).parents[2] / "docs" / "embeddings.md"
RUN = """
import json, os
import torch
import torch.nn.functional as F
from torch import nn
import amp_runtime as amp

SHARDS, ROWS, SAMPLES = os.environ["SHARDS"] == "yes", 400, 24


class WideAndDeep(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.EmbeddingBag(ROWS, 1, mode="sum", sparse=True)
        self.deep = nn.EmbeddingBag(ROWS, 4, mode="mean", sparse=True)
        self.place = nn.Embedding(7, 3)
        self.head = nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids, place):
        deep = torch.cat([self.deep(ids), self.place(place)], 1)
        return (self.wide(ids) + self.head(deep)).squeeze(1)


def clicks(step):
    # A few identifiers are common; who is shown what decides about a click, with noise.
    generator = torch.Generator().manual_seed(step)
    ids = (torch.rand(SAMPLES, 5, generator=generator) ** 3 * ROWS).long()
    place = torch.randint(7, (SAMPLES,), generator=generator)
    chance = torch.sigmoid(torch.sin(ids.float()).sum(1) + place / 7)
    return ids, place, (torch.rand(SAMPLES, generator=generator) < chance).float()


amp.init("O0", ddp=True)
torch.manual_seed(0)
model = WideAndDeep()
if SHARDS:
    amp.shard_embedding(model, min_rows=100)
tables = [*model.wide.parameters(), *model.deep.parameters()]
model = amp.prepare_model(model)
rest = [*model.place.parameters(), *model.head.parameters()]
optimizers = [torch.optim.SparseAdam(tables, lr=0.02), amp.optim.AdamW(rest, lr=0.01)]
first = 0
if os.path.exists("run.pt"):
    first = amp.load_checkpoint("run.pt", model=model, optimizers=optimizers)["steps"]
losses = []
for step in range(first, first + 5):
    # The last rank has more than the others: ragged batches, of which the joined one is the mean.
    ends = [SAMPLES * rank // (amp.world_size() + 1) for rank in range(amp.world_size())] + [SAMPLES]
    own = slice(ends[amp.rank()], ends[amp.rank() + 1])
    ids, place, clicked = (tensor[own] for tensor in clicks(step))
    for optimizer in optimizers:
        optimizer.zero_grad()
    with amp.autocast():
        loss = F.binary_cross_entropy_with_logits(model(ids, place), clicked, reduction="sum")
        loss = loss * amp.world_size() / SAMPLES
    amp.scaler.scale(loss).backward()
    if os.environ["CLIP"] == "yes":
        amp.clip_grad_norm_(model.parameters(), 0.3)
    for optimizer in optimizers:
        amp.scaler.step(optimizer)
    amp.scaler.update()
    losses.append(amp.reduce_mean(loss.item()))
amp.save_checkpoint("run.pt", model=model, optimizers=optimizers, steps=first + 5)
print(json.dumps(losses))
"""


def losses(launcher: Launcher, folder: Path, ranks: int, *, shards: str = "yes", clip: str = "yes") -> list[float]:
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    script.write_text(RUN.replace('"run.pt"', repr(str(folder / "run.pt"))))
    environment = {"SHARDS": shards, "CLIP": clip}
    if ranks == 1:
        finished = launcher.alone(script, folder, **environment)
    else:
        finished = launcher.together(script, folder, ranks, **environment)
    assert finished.returncode == 0, finished.stderr[-3000:]
    found: list[float] = json.loads(finished.stdout)
    return found


def test_wide_and_deep_goes_on_with_any_number_of_processes(launcher: Launcher, tmp_path: Path) -> None:
    expected = [loss for _ in range(3) for loss in losses(launcher, tmp_path / "alone", 1, shards="no")]
    found = [loss for ranks in (2, 4, 1) for loss in losses(launcher, tmp_path / "shared", ranks)]
    assert found == pytest.approx(expected, rel=1e-5)
    saved = [torch.load(tmp_path / name / "run.pt")["model"] for name in ("alone", "shared")]
    assert [list(state) for state in saved] == [list(saved[0])] * 2
    for one, other in zip(saved[0].values(), saved[1].values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_one_process_has_no_shards(launcher: Launcher, tmp_path: Path) -> None:
    """To the last bit what a model is whose tables nobody asked to share out."""
    found = [losses(launcher, tmp_path / how, 1, shards=how, clip="no") for how in ("yes", "no")]
    assert found[0] == found[1]


def test_nothing_changes_before_init_and_in_one_process() -> None:
    table = nn.Embedding(3, 2)
    weight = table.weight
    assert amp.shard_embedding(table) is table and table.weight is weight and type(table) is nn.Embedding
    with pytest.raises(TypeError, match=r"allowed: a torch\.nn\.Module"):
        amp.shard_embedding(weight)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="min_rows=0; allowed: 1, 2, 3"):
        amp.shard_embedding(table, min_rows=0)


def test_what_is_declined_is_so_in_one_process_too() -> None:
    amp.init("O0")
    try:
        with pytest.raises(ValueError, match=r"with max_norm=1\.0; allowed: a whole float32"):
            amp.shard_embedding(nn.Embedding(3, 2, max_norm=1.0))
        amp.init("O2")
        with pytest.raises(ValueError, match="at O2; allowed: O0, O1"):
            amp.shard_embedding(nn.Embedding(3, 2))
    finally:
        amp.shutdown()


# ---- the page -----------------------------------------------------------------------------------------------------


def test_the_table_says_of_each_row_what_is_so() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## What works")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(rows) > 25
    assert {row[1] for row in rows} == {"works", "declined", "not noticed", "not noticed at once", "not tried"}
    names = re.findall(r"`amp\.(\w+)", table)
    assert len(names) > 8 and [name for name in names if not hasattr(amp, name)] == []


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_blocks_of_the_page_run(ranks: int, launcher: Launcher, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    script = tmp_path / "page.py"
    script.write_text("import os\nos.chdir(os.environ['CHECK_DIR'])\n" + "\n".join(blocks))
    finished = launcher.alone(script, tmp_path) if ranks == 1 else launcher.together(script, tmp_path, ranks)
    assert finished.returncode == 0, finished.stderr[-3000:]
