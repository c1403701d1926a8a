"""``--launch-lines`` edits the commands that say in how many processes a migrated script runs."""

from __future__ import annotations

import json

import pytest
from amp_migrate.launch.editing import edited
from amp_migrate.launch.launches import launches
from cli_standin import TRAIN
from test_cli_launches import found, project, report

__all__ = ["project"]

RUN = b"""#!/bin/sh
# two GPUs
CUDA_VISIBLE_DEVICES=0,1 python train.py --epochs 10  # as ever
python train.py --debug
"""
AFTER = RUN.replace(b"python train.py --epochs", b"torchrun --nproc-per-node 2 train.py --epochs")


@pytest.fixture
def train(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "run.sh").write_bytes(RUN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _edited(project, text: str, name: str = "run.sh") -> str:
    """The file as it becomes."""
    result = edited(found(project, text, name))
    return next((after for _, after, _ in result.values()), text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "CUDA_VISIBLE_DEVICES=0,1 python train.py\n",
            "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 2 train.py\n",
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,1 bash python train.py --lr 1\n",
            "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 2 train.py --lr 1\n",
        ),
        (
            "python -m torch.distributed.launch --nproc_per_node=8 train.py --lr 1  # all\n",
            "torchrun --nproc-per-node=8 train.py --lr 1  # all\n",
        ),
        (
            "python -m torch.distributed.launch \\\n    --nproc_per_node=4 \\\n    train.py \\\n    --lr 1\n",
            "torchrun --nproc-per-node=4 train.py \\\n    --lr 1\n",
        ),
        (
            "python -m torch.distributed.launch --nproc_per_node=$N train.py \\\r\n  --lr 1\r\n",
            "torchrun --nproc-per-node=$N train.py \\\r\n  --lr 1\r\n",
        ),
        (
            "A=0,1\nCUDA_VISIBLE_DEVICES=0,1 python train.py a && CUDA_VISIBLE_DEVICES=2,3,4 python train.py a\n",
            "A=0,1\nCUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 2 train.py a && "
            "CUDA_VISIBLE_DEVICES=2,3,4 torchrun --nproc-per-node 3 train.py a\n",
        ),
    ],
)
def test_the_words_that_start_the_script_are_replaced(project, before, after):
    (project / "run.sh").write_bytes(before.encode())
    result = edited(launches([report(project / "train.py")]).found)
    assert [text for _, text, _ in result.values()] == [after]


def test_documents_are_edited_in_their_blocks(project):
    text = "Start `python train.py`:\n\n```\n$ CUDA_VISIBLE_DEVICES=0,1 python train.py\n```\n"
    new = text.replace("0,1 python train.py", "0,1 torchrun --nproc-per-node 2 train.py")
    assert _edited(project, text, "README.md") == new


@pytest.mark.parametrize(
    "text",
    [
        "python train.py\n",
        "CUDA_VISIBLE_DEVICES=0 python train.py\n",
        "srun -N 1 python -m torch.distributed.launch --nproc_per_node=2 train.py\n",
        "python -m torch.distributed.launch --nproc_per_node=2 train.py --local_rank 0\n",
        "python -m torch.distributed.launch --nproc_per_node=2 train.py --evaluate\n",
        "mpirun -np 2 python train.py\n",
        "torchrun --nproc-per-node 2 train.py\n",
    ],
)
def test_what_leaves_something_to_decide_stays(project, text):
    assert _edited(project, text) == text


def test_they_are_shown_written_and_put_back_with_the_script(train, invoke):
    shown = invoke("train.py", "--ddp", "--launch-lines")
    assert "+CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 2 train.py --epochs 10  # as ever" in shown.stdout
    assert "launches, edited:\n  run.sh:3:" in shown.stderr and "launches, not edited" in shown.stderr
    assert (train / "run.sh").read_bytes() == RUN

    (train / "run.sh").chmod(0o755)
    invoke("train.py", "--ddp", "--launch-lines", "-w", "--allow-dirty")
    assert (train / "run.sh").read_bytes() == AFTER
    assert (train / "run.sh").stat().st_mode & 0o777 == 0o755
    again = invoke("train.py", "--ddp", "--launch-lines", "--check")
    assert again.exit_code == 0, again.stderr

    invoke("--undo", "train.py")
    assert (train / "run.sh").read_bytes() == RUN
    assert (train / "train.py").read_text() == TRAIN


def test_without_the_option_or_without_processes_nothing_of_them_is_edited(train, invoke):
    assert "torchrun" not in invoke("train.py", "--ddp").stdout
    said = invoke("train.py", "--launch-lines")
    assert "torchrun" not in said.stdout and "has no effect without --ddp" in said.stderr


def test_json_says_which_are_edited(train, invoke):
    document = json.loads(invoke("train.py", "--ddp", "--launch-lines", "--format", "json").stdout)
    assert [item["edited"] for item in document["launches"]] == [True, False]
    assert [item["path"] for item in document["files"]] == ["run.sh", "train.py"]


def test_settings_of_the_project_can_ask_for_it(train, invoke):
    (train / "pyproject.toml").write_text("[tool.amp-migrate]\nddp = true\nlaunch-lines = true\n")
    assert "torchrun --nproc-per-node 2" in invoke("train.py").stdout


@pytest.mark.parametrize("output_format", ["sarif", "github", "rdjson"])
def test_reviews_take_them(train, invoke, output_format):
    shown = invoke("train.py", "--ddp", "--launch-lines", "--format", output_format)
    assert shown.exit_code == 0 and "run.sh" in shown.stdout


def test_a_report_shows_them_among_the_changes(train, invoke):
    shown = invoke("train.py", "--ddp", "--launch-lines", "--report", "page.md", "--report", "page.html")
    assert shown.exit_code == 0, shown.stderr
    page = (train / "page.md").read_text()
    assert "run.sh:3" not in page and "run.sh:4" in page
    assert "| `run.sh` | 1 | +1 −1 |" in page
    assert "run.sh" in (train / "page.html").read_text()
