"""What ``--launch`` understands, and what it says of what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_migrate.problems import UserError
from amp_migrate.verify.by_hand import ByHand
from amp_migrate.verify.launches import Launch, local_rank_option, parse
from amp_migrate.verify.plan import O0, O0_TOGETHER, Planned

UNDERSTOOD = {
    "torchrun --nproc-per-node 4 train.py --lr 0.1": Launch("torchrun", "train.py", ("--lr", "0.1"), 4),
    "torchrun --standalone --nnodes=1 --nproc_per_node=2 -- train.py": Launch("torchrun", "train.py", (), 2),
    "OMP_NUM_THREADS=1 DATA='a b' torchrun --nproc-per-node=2 src/train.py": Launch(
        "torchrun", "src/train.py", (), 2, {"OMP_NUM_THREADS": "1", "DATA": "a b"}
    ),
    "python -m torch.distributed.run --rdzv-endpoint=localhost:0 --nproc-per-node 3 -m pkg.train -x": Launch(
        "torchrun", "pkg.train", ("-x",), 3, is_module=True
    ),
    "python3 -u -m torch.distributed.launch --nproc_per_node 2 train.py a": Launch("launch", "train.py", ("a",), 2),
    "python -m torch.distributed.launch --use_env --nproc_per_node 2 train.py": Launch("torchrun", "train.py", (), 2),
    "/opt/bin/python3.11 train.py --world-size 2": Launch("python", "train.py", ("--world-size", "2")),
    "python -m pkg.train --gpus 2": Launch("python", "pkg.train", ("--gpus", "2"), is_module=True),
}


@pytest.mark.parametrize("command", UNDERSTOOD)
def test_a_command_says_how_many_processes_are_started_and_with_what(command: str) -> None:
    assert parse(command) == UNDERSTOOD[command]


REFUSED = {
    "accelerate launch train.py": "accelerate is not known; torchrun, ",
    "python -m accelerate.commands.launch train.py": "accelerate.commands.launch is not known",
    "mpirun -np 4 python train.py": "mpirun is not known",
    "bash run.sh": "bash is not known",
    "torchrun --nproc-per-node gpu train.py": "--nproc-per-node gpu depends on the machine: give a number",
    "torchrun train.py": "--nproc-per-node 1: there have to be 2 to 64 processes",
    "torchrun --nnodes 2 --nproc-per-node 2 train.py": "give it --nnodes 1",
    "torchrun --nproc-per-node 2": "the following arguments are required: the script",
    "torchrun --nprocs 2 train.py": "unrecognized arguments: --nprocs",
    "torchrun --nproc-per-node 2 --no-python train.sh": "--no-python starts no script",
    "torchrun --nproc-per-node $GPUS train.py": "$GPUS is for a shell; write what it stands for",
    "cd src && torchrun --nproc-per-node 2 train.py": "&& is for a shell",
    "torchrun 'train.py": "cannot be split into words: no closing quotation",
    "python -O train.py": "python's option -O is not known",
    "python": "it names no script",
    "A=1": "it names no program",
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_is_not_understood_is_said_in_one_line(command: str) -> None:
    with pytest.raises(UserError) as raised:
        parse(command)
    text = str(raised.value)
    assert text.startswith("--launch ") and REFUSED[command] in text and "\n" not in text


def test_each_process_is_told_its_rank_as_the_launcher_does() -> None:
    assert parse("python -m torch.distributed.launch --nproc-per-node 2 a.py b").of_rank(1) == ("--local-rank=1", "b")
    assert parse("torchrun --nproc-per-node 2 a.py b").of_rank(1) == ("b",)


@pytest.mark.parametrize(
    ("text", "option"),
    [
        (b"parser.add_argument('--local_rank', type=int)", "--local_rank"),
        (b'parser.add_argument(\n    "--local-rank", "--local_rank", default=-1)', "--local-rank"),
        (b"local_rank = int(os.environ['LOCAL_RANK'])", ""),
    ],
)
def test_a_script_that_declares_its_local_rank_is_told_it(text: bytes, option: str) -> None:
    assert local_rank_option([b"import os", text]) == option
    how = ByHand(local_rank=option)
    together, alone = Planned(O0_TOGETHER, processes=2), Planned(O0)
    assert how.arguments(together, 1, ("--lr", "1")) == (*((f"{option}=1",) if option else ()), "--lr", "1")
    assert how.arguments(alone, 0, ("--lr", "1")) == ("--lr", "1")


def test_a_launch_is_of_the_script_that_it_names() -> None:
    assert parse("torchrun --nproc-per-node 2 src/train.py").starts(Path("/x/train.py"), "")
    assert not parse("torchrun --nproc-per-node 2 other.py").starts(Path("/x/train.py"), "")
    assert parse("torchrun --nproc-per-node 2 -m pkg").starts(Path("/x/pkg/__main__.py"), "pkg.__main__")
