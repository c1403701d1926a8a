"""Two workers of Ray Train: amp.init joins the group that they have. Passed over where Ray is not installed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from launching import Launcher, environment_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.heavy,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason='Ray is not installed: pip install -c constraints.txt -e ".[ray]"',
    ),
]

ROOT = Path(__file__).parents[2]
SECONDS = 600  # Ray starts some ten processes
QUIET = """
import os, runpy, sys
import ray
for left in (2, 1, 0):
    try:
        ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=os.environ["CHECK_RAY"])
        break
    except Exception as error:  # it gives its processes 30 seconds to start
        if not left or "timed out during startup" not in str(error):
            raise
        ray.shutdown()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
SHARDED = """
import os
import amp_runtime as amp
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

amp.init("O1", dtype="bf16", parallel="fsdp")
assert amp.rank() == amp.local_rank() == dist.get_rank() and amp.world_size() == 2
torch.manual_seed(3)
data = TensorDataset(torch.randn(48, 6), torch.arange(48))
loader = amp.prepare_loader(DataLoader(data, batch_size=3, shuffle=True))
model = amp.prepare_model(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        with amp.autocast():
            loss = model(x).square().mean()
        amp.scaler.scale(loss).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
path = os.path.join(os.environ["CHECK_DIR"], "sharded.pt")
amp.save_checkpoint(path, model=model, optimizer=optimizer, loader=loader)
if os.environ.get("CHECK_RAY"):
    import ray.train.torch

    of_ray = ray.train.torch.prepare_data_loader(DataLoader(data, batch_size=3, shuffle=True))
    parts = [None, None]
    dist.all_gather_object(parts, [int(number) for _, y in amp.prepare_loader(of_ray) for number in y])
    assert sorted(parts[0] + parts[1]) == list(range(48))  # shared out once
    amp.shutdown()
    total = torch.ones(1)
    dist.all_reduce(total)  # the group is Ray's, and still there
    assert total.item() == 2
"""


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """The file of the page that starts train.py in each worker."""
    page = (ROOT / "docs/ray.md").read_text(encoding="utf-8")
    (block,) = (
        text for text in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE) if "fit()" in text
    )
    path = tmp_path / "start.py"
    path.write_text(block)
    return path


def by_ray(start: Path, *arguments: str) -> str:
    """What ``python start.py ARGUMENTS`` prints."""
    own = {
        "HOME": str(start.parent),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(SECONDS),
    }
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as short:  # a socket's path has some hundred letters
        done = subprocess.run(
            [sys.executable, "-c", QUIET, str(start), *arguments],
            env=environment_of(start.parent) | own | {"CHECK_RAY": short, "STEPS": "6"},
            cwd=start.parent,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout + done.stderr


def test_a_migrated_script_trains_what_it_trains_under_torchrun(
    start: Path, tmp_path: Path, launcher: Launcher
) -> None:
    script = tmp_path / "train.py"
    shutil.copy(ROOT / "fixtures/runnable/function_mnist/main.py", script)
    migrate = [
        str(Path(sys.executable).with_name("amp-migrate")),
        str(script),
        "--ddp",
        "--opt-level",
        "O1",
        "-w",
        "-q",
    ]
    assert subprocess.run(migrate, timeout=SECONDS).returncode == 0
    for name in ("ray", "torchrun"):
        (tmp_path / name).mkdir()
    printed = by_ray(start, "--out", str(tmp_path / "ray"))
    assert "Test set: Average loss" in printed
    same = tmp_path / "same.py"
    same.write_text(
        f"import runpy, sys\nsys.argv = ['train.py', '--out', {str(tmp_path / 'torchrun')!r}]\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
    )
    finished = launcher.together(same, tmp_path, STEPS="6")
    assert finished.returncode == 0, finished.stderr[-3000:]
    one, other = (torch.load(tmp_path / name / "digits_cnn.pt") for name in ("ray", "torchrun"))
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_sharded_models_train_and_the_group_is_left_to_ray(start: Path, tmp_path: Path, launcher: Launcher) -> None:
    (tmp_path / "train.py").write_text(SHARDED)
    by_ray(start)
    os.replace(tmp_path / "sharded.pt", tmp_path / "ray.pt")
    finished = launcher.together(tmp_path / "train.py", tmp_path)
    assert finished.returncode == 0, finished.stderr[-3000:]
    one, other = (torch.load(tmp_path / name)["model"] for name in ("ray.pt", "sharded.pt"))
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
