"""A run that goes on in mid-epoch on another number of processes: each sample is seen once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launching import Launcher

pytestmark = pytest.mark.heavy

SIZE = 29
TRAIN = """
import json, os, warnings
from pathlib import Path
import amp_runtime as amp, torch
from torch.utils import data

folder, stage, last = Path(os.environ["CHECK_DIR"]), int(os.environ["STAGE"]), os.environ["LAST"] == "1"
amp.init("O0", ddp=True)
torch.manual_seed(3 + stage)

class Points(data.Dataset):
    def __len__(self): return SIZE
    def __getitem__(self, index): return torch.tensor(index)

def loaders():
    points, order = Points(), torch.Generator().manual_seed(4)
    def make(**options): return data.DataLoader(points, **{"batch_size": 2 if stage else 3, **options})
    batches = data.BatchSampler(data.SubsetRandomSampler(range(SIZE)), 3, False)
    yield "shuffled", amp.prepare_loader(make(shuffle=True))
    yield "generator", amp.prepare_loader(make(shuffle=True, generator=order))
    yield "ordered", amp.prepare_loader(make())
    yield "sampler", amp.prepare_loader(make(sampler=data.SubsetRandomSampler(range(SIZE))))
    yield "batches", amp.prepare_loader(make(batch_size=1, batch_sampler=batches))
    yield "single", amp.prepare_loader(make(batch_size=None, shuffle=True))
    yield "workers", amp.prepare_loader(make(shuffle=True, num_workers=1))
    yield "join", amp.prepare_loader(make(shuffle=True), uneven="join")
    yield "drop", amp.prepare_loader(make(shuffle=True), uneven="drop")

def ids(loader, most):
    found = []
    for number, batch in enumerate(loader):
        found += [] if amp.shadowing() else batch.reshape(-1).tolist()
        if number + 1 == most:
            amp.save_checkpoint(path, loader=loader)
            break
    return found

seen = {}
for kind, loader in loaders():
    path = folder / f"{kind}.pt"
    drawn = []
    if stage:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            amp.load_checkpoint(path, loader=loader)
        with amp._data.streams.common_numbers():
            state = torch.get_rng_state()
            drawn = [torch.rand(()).item()]
            torch.set_rng_state(state)
    seen[kind] = [ids(loader, 0 if last else 2), ids(loader, 0) if last else [], drawn]
(folder / f"{stage}-{amp.rank()}.json").write_text(json.dumps(seen))
"""


def stages(ranks: tuple[int, ...], launcher: Launcher, folder: Path) -> list[list[Any]]:
    """What each rank of each launch has seen."""
    script = folder / "train.py"
    script.write_text(TRAIN.replace("SIZE", str(SIZE)))
    for stage, count in enumerate(ranks):
        last = str(int(stage + 1 == len(ranks)))
        if count == 1:
            finished = launcher.alone(script, folder, STAGE=str(stage), LAST=last)
        else:
            finished = launcher.together(script, folder, count, STAGE=str(stage), LAST=last)
        assert finished.returncode == 0, finished.stderr[-3000:]
    return [
        [json.loads((folder / f"{stage}-{rank}.json").read_text()) for rank in range(count)]
        for stage, count in enumerate(ranks)
    ]


@pytest.mark.parametrize("ranks", [(2, 1), (1, 2), (3, 2), (2, 3, 1), (1, 2, 2)])
def test_what_all_have_seen_is_not_seen_again_and_the_rest_once(
    ranks: tuple[int, ...], launcher: Launcher, tmp_path: Path
) -> None:
    found = stages(ranks, launcher, tmp_path)
    for kind in found[0][0]:
        seen = [[index for rank in stage for index in rank[kind][0]] for stage in found]
        before = [index for stage in seen[:-1] for index in stage]
        assert before and len(before) == len(set(before)), kind
        everything = before + seen[-1]
        # What pads the last round: items, of a batch sampler batches.
        spare = 0 if kind == "join" else (ranks[-1] - 1) * (3 if kind == "batches" else 1)
        if kind == "drop":
            assert SIZE - spare <= len(set(everything)) == len(everything)
        else:
            assert set(everything) == set(range(SIZE)) and len(everything) - SIZE <= spare, kind
        following = [index for rank in found[-1] for index in rank[kind][1]]
        assert len(set(following)) >= SIZE - (kind == "drop"), f"{kind}: the next epoch is whole"
        drawn = [rank[kind][2] for rank in found[-1]]
        assert drawn[0] and all(other == drawn[0] for other in drawn), f"{kind}: ranks share a stream of numbers"
