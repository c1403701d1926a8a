"""Processes in torch's own words: how they join and part, and what only the first of them does."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options
from amp_rules.plan.report import Report

HEAD = """\
import os
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter
"""

TRAINING = """\
dataset = TensorDataset(torch.randn(80, 4), torch.randn(80, 1))
loader = DataLoader(dataset, batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

STEP = """\
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
"""


def epochs(before: str = "", in_batch: str = "", after: str = "") -> str:
    """A script of two epochs, with more before the training, for each batch, and after each epoch."""
    loop = f"for epoch in range(2):\n    for x, y in loader:\n{in_batch}{STEP}{after}"
    return HEAD + before + TRAINING + loop


MAIN = indent(TRAINING, "    ") + "    for x, y in loader:\n" + STEP


def of_main(body: str) -> str:
    """A script with a main function."""
    return HEAD + f"\n\ndef main():\n{body}\n\nif __name__ == '__main__':\n    main()\n"


def in_torch(folder: Path, text: str) -> tuple[Report, str]:
    """The report, and the text in torch's words."""
    path = folder / "train.py"
    path.write_text(text)
    report = migrate(path, Options(target="torch", ddp=True))
    after = report.changes[0].after if report.changes else text
    compile(after, "train.py", "exec")
    assert "amp_runtime" not in after
    return report, after


def migrated(folder: Path, text: str) -> str:
    """The text in torch's words, of a script that is migrated to several processes."""
    report, after = in_torch(folder, text)
    assert report.distribution == "migrated", report.refusals
    return after


def test_processes_of_a_script_without_a_gpu_join_over_gloo(tmp_path: Path) -> None:
    after = migrated(tmp_path, epochs())
    assert 'dist.init_process_group("gloo")' in after and "nccl" not in after


@pytest.mark.parametrize(
    "before",
    [
        "device = torch.device(os.environ['WHERE'])\n",
        "config = dict(line.split() for line in open('config.txt'))\ndevice = config['device']\n",
    ],
)
def test_a_device_that_only_a_run_can_tell_may_be_a_gpu(tmp_path: Path, before: str) -> None:
    after = migrated(tmp_path, epochs(before=before))
    assert '"cpu:gloo,cuda:nccl" if torch.cuda.is_available()' in after


def test_processes_join_and_part_under_a_condition(tmp_path: Path) -> None:
    after = migrated(tmp_path, epochs(before="device = 'cuda' if torch.cuda.is_available() else 'cpu'\n"))
    assert 'dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")' in after
    assert after.endswith("\nif WORLD_SIZE > 1:\n    dist.destroy_process_group()\n")
    joining = after[after.index("if WORLD_SIZE > 1:") :]
    for line in joining.splitlines():
        if "dist.init_process_group" in line or "torch.cuda.set_device" in line or "os.devnull" in line:
            assert line.startswith("    ")


def test_a_main_function_parts_at_its_end(tmp_path: Path) -> None:
    after = migrated(tmp_path, of_main(MAIN + "    return model\n"))
    assert "    if WORLD_SIZE > 1:\n        dist.destroy_process_group()\n    return model\n" in after
    assert not any(line != "" and not line.strip() for line in after.splitlines())


def test_a_main_function_that_returns_early_parts_after_its_call(tmp_path: Path) -> None:
    after = migrated(tmp_path, of_main("    if os.environ.get('DRY'):\n        return\n" + MAIN))
    assert after.endswith("    main()\n\n    if WORLD_SIZE > 1:\n        dist.destroy_process_group()\n")


def test_a_script_that_seeds_itself_copies_no_states(tmp_path: Path) -> None:
    after = migrated(tmp_path, epochs(before="torch.manual_seed(0)\n"))
    assert "get_rng_state" not in after


@pytest.mark.parametrize(
    "before",
    [
        "",
        "if os.environ.get('SEED'):\n    torch.manual_seed(int(os.environ['SEED']))\n",
        "noise = torch.randn(3)\ntorch.manual_seed(0)\n",
    ],
)
def test_a_script_that_may_draw_unseeded_goes_on_with_the_first_ones_numbers(tmp_path: Path, before: str) -> None:
    after = migrated(tmp_path, epochs(before=before))
    assert "    torch.set_rng_state(states[0])\n" in after


def test_a_seed_that_is_drawn_is_the_first_ones(tmp_path: Path) -> None:
    before = "seed = random.randint(1, 10000)\nrandom.seed(seed)\ntorch.manual_seed(seed)\n"
    after = migrated(tmp_path, epochs(before=before))
    assert "random.setstate(" in after
    assert after.index("random.setstate(") < after.index("random.randint(")


def test_a_variable_of_the_script_is_not_overwritten(tmp_path: Path) -> None:
    after = migrated(tmp_path, epochs(before="states = [1, 2]\n"))
    assert "random_states = [torch.get_rng_state()]" in after


def test_what_all_compute_stands_above_the_condition(tmp_path: Path) -> None:
    after = "    kept.append(f'{epoch}.pt')\n    if len(kept) > 1:\n        os.remove(kept.pop(0))\n"
    text = migrated(tmp_path, epochs(before="kept = []\n", after=after))
    assert "        path = kept.pop(0)\n        if RANK == 0:\n            os.remove(path)\n" in text


def test_a_writer_is_the_first_ones_and_so_is_what_it_is_asked(tmp_path: Path) -> None:
    before = "writer = SummaryWriter('runs')\n"
    text = migrated(tmp_path, epochs(before=before, after="    writer.add_scalar('loss', loss.item(), epoch)\n"))
    assert "writer = SummaryWriter('runs') if RANK == 0 else None\n" in text
    assert "    if RANK == 0:\n        writer.add_scalar('loss', loss.item(), epoch)\n" in text


def test_a_loop_of_a_writer_is_left_to_the_first_as_a_whole(tmp_path: Path) -> None:
    rows = "    for name in ('a', 'b'):\n        writer.add_scalar(name, loss.item(), epoch)\n"
    text = migrated(tmp_path, epochs(before="writer = SummaryWriter('runs')\n", after=rows))
    assert "    if RANK == 0:\n        for name in ('a', 'b'):\n            writer.add_scalar" in text


def test_a_writer_that_is_asked_for_something_declines(tmp_path: Path) -> None:
    before = "writer = SummaryWriter('runs')\nfolder = writer.get_logdir()\n"
    report, after = in_torch(tmp_path, epochs(before=before))
    assert (report.precision, report.distribution) == ("migrated", "declined")
    assert any("only the first process has" in item.message for item in report.refusals)
    assert "RANK" not in after


def test_a_file_of_the_others_goes_nowhere(tmp_path: Path) -> None:
    after = "    print(random.random(), file=log)\n"
    text = migrated(tmp_path, epochs(before="log = open('log.txt', 'w')\n", after=after))
    assert "log = open('log.txt' if RANK == 0 else os.devnull, 'w')\n" in text


def test_a_decision_by_the_clock_is_the_first_ones(tmp_path: Path) -> None:
    after = "    if time.time() - start > 3600:\n        break\n"
    text = migrated(tmp_path, epochs(before="import time\nstart = time.time()\n", after=after))
    assert "    if from_main_process(time.time() - start > 3600):\n" in text
    assert text.count("def from_main_process(value):") == 1


@pytest.mark.parametrize("is_imported", [True, False])
def test_numpy_is_named_where_only_the_new_code_needs_it(tmp_path: Path, is_imported: bool) -> None:
    after = "    if time.time() - start > 3600:\n        break\n"
    text = epochs(before="import time\nstart = time.time()\n", after=after)
    report, _ = in_torch(tmp_path, text if is_imported else text.replace("import numpy as np\n", ""))
    assert any("NumPy" in note.text for note in report.notes) is not is_imported


def test_a_start_that_runs_again_joins_once(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(of_main(MAIN))
    started = migrate(path, Options(ddp=True)).changes[0].after
    again = started.replace("    main()\n", "    for _ in range(2):\n        main()\n")
    _, after = in_torch(tmp_path, again)
    assert "    if WORLD_SIZE > 1 and not dist.is_initialized():\n" in after
    assert "destroy_process_group" not in after
