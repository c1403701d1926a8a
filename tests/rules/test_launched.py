"""A script that stops with an error without a launcher is known as one, with the number of processes that it takes."""

from __future__ import annotations

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

TRAIN = """\
import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main({parameters}):
    {first}
    model = nn.Linear(4, 1).cuda()
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4).cuda()).mean()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    {start}
"""

OPTION = """\
parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", type=bool, default={default})
    if parser.parse_args().cuda:
        dist.init_process_group("nccl")"""


@pytest.mark.parametrize(
    ("first", "number"),
    [
        ('rank = int(os.environ["LOCAL_RANK"])\n    dist.init_process_group("nccl")', "1"),
        ('dist.init_process_group("nccl")', "1"),
        (OPTION.format(default="True"), "1"),
        (OPTION.format(default="False"), ""),
        (
            'if os.name != "nt":\n        dist.init_process_group("nccl")\n    else:\n        raise OSError(os.name)',
            "1",
        ),
        ('dist.init_process_group("nccl", "tcp://localhost:1234", rank=0, world_size=1)', ""),
        ('rank = int(os.environ["RANK"]) if "RANK" in os.environ else 0', ""),
        ('rank = int(os.environ.get("RANK", 0))', ""),
        ('dist.init_process_group("nccl", rank=int(os.getenv("RANK", "0")), world_size=1)', "1"),
        ('os.environ["RANK"] = "0"\n    dist.init_process_group("nccl")', ""),
        ('if "SLURM_JOB_ID" in os.environ:\n        os.environ["RANK"] = "0"\n    rank = os.environ["RANK"]', "1"),
        ('if not dist.is_initialized():\n        dist.init_process_group("nccl", init_method="env://")', "1"),
        (
            'if not torch.cuda.is_available():\n        raise RuntimeError("no GPU")\n'
            '    dist.init_process_group("nccl")',
            "1",
        ),
        ('if not torch.cuda.is_available():\n        return\n    dist.init_process_group("nccl")', ""),
        ('parser = argparse.ArgumentParser()\n    parser.add_argument("--local_rank", type=int, required=True)', "1"),
        ('parser = argparse.ArgumentParser()\n    parser.add_argument("--local_rank", type=int, default=0)', ""),
        ('if int(os.environ.get("WORLD_SIZE", 1)) > 1:\n        dist.init_process_group("nccl")', ""),
        ('if "RANK" in os.environ:\n        dist.init_process_group("nccl")\n    print(dist.get_rank())', "N"),
    ],
)
def test_what_a_launcher_must_start(tmp_path, first, number):
    entry = tmp_path / "train.py"
    entry.write_text(TRAIN.format(parameters="", first=first, start="main()"))
    report = migrate(entry, Options(ddp=True))
    assert (report.precision, report.launched) == ("migrated", number)


def test_a_script_that_starts_its_own_processes_takes_none(tmp_path):
    entry = tmp_path / "train.py"
    first = 'dist.init_process_group("nccl", rank=rank, world_size=2)'
    entry.write_text(TRAIN.format(parameters="rank", first=first, start="mp.spawn(main, nprocs=2)"))
    assert migrate(entry, Options(ddp=True)).launched == ""


@pytest.mark.parametrize(
    ("argument", "asks"),
    [
        ('parser.add_subparsers(dest="mode").add_parser("train")', True),
        ('parser.add_argument("--data", required=True)', True),
        ('parser.add_argument("data")', True),
        ('parser.add_argument("data", nargs="?", default="data")', False),
        ('parser.add_argument("data", nargs="*")', True),
        ('parser.add_argument("rest", nargs=argparse.REMAINDER)', False),
        ('parser.add_argument("--epochs", type=int, default=2)', False),
    ],
)
def test_what_the_command_line_has_to_name(argument, asks, tmp_path):
    entry = tmp_path / "train.py"
    first = f"parser = argparse.ArgumentParser()\n    {argument}\n    parser.parse_args()"
    entry.write_text("import argparse\n" + TRAIN.format(parameters="", first=first, start="main()"))
    report = migrate(entry, Options())
    assert (report.precision, report.asks) == ("migrated", asks)


@pytest.mark.parametrize(
    ("line", "asks"),
    [
        ("number = int(sys.argv[1])", True),
        ("number = sys.argv[0]", False),
        ('number = sys.argv[1] if len(sys.argv) > 1 else ""', False),
        ("if len(sys.argv) > 1:\n        number = sys.argv[1]", False),
        ("try:\n        number = sys.argv[1]\n    except IndexError:\n        pass", False),
        ("number = len(sys.argv) > 1 and sys.argv[1]", False),
    ],
)
def test_an_argument_that_is_taken_by_its_place(line, asks, tmp_path):
    entry = tmp_path / "train.py"
    entry.write_text("import sys\n" + TRAIN.format(parameters="", first=line, start="main()"))
    report = migrate(entry, Options())
    assert (report.precision, report.asks) == ("migrated", asks)


@pytest.mark.parametrize(
    ("line", "asks"),
    [
        ('sys.argv = ["train.py", "data"]', False),
        ('mock.patch.object(sys, "argv", ["train.py", "data"]).start()', False),
        ("sys.argv = sys.argv[1:]", True),
        ('mock.patch.object(sys, "path", ["data"]).start()', True),
    ],
)
def test_what_the_script_writes_out_itself_no_command_line_has_to_name(line, asks, tmp_path):
    entry = tmp_path / "train.py"
    parser = 'parser = argparse.ArgumentParser()\n    parser.add_argument("data")\n    parser.parse_args()'
    text = TRAIN.format(parameters="", first=f"{line}\n    {parser}", start="main()")
    entry.write_text(f"import argparse\nimport sys\nfrom unittest import mock\n{text}")
    report = migrate(entry, Options())
    assert (report.precision, report.asks) == ("migrated", asks)
