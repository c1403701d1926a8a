"""What the files beside this one share.

Each of them holds checks that run in processes started as torchrun starts them: every ``check_*`` function runs on all
ranks, in the order of the file. ``RANKS = 3`` in a file starts three processes, ``RANKS = (2, 4)`` two and then four;
the default is two.
``test_runtime_ranks.py`` starts each file so and reports what failed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import traceback
from pathlib import Path
from typing import Any

import amp_runtime as amp
import torch
import torch.distributed as dist
from amp_runtime._core.context import context


def run_checks(namespace: dict[str, Any]) -> None:
    """Runs a file's checks on this rank, until one fails."""
    rank = int(os.environ["RANK"])
    report = Path(os.environ["CHECK_DIR"]) / f"rank{rank}.jsonl"
    torch.manual_seed(rank)
    random.seed(rank)
    amp.init("O0", ddp=True)
    for name, check in list(namespace.items()):
        if not name.startswith("check_"):
            continue
        context.said.clear()  # each check gives its own options
        # A rank that waits for ever says where; each check begins anew, since a loaded machine may need long for all.
        faulthandler.dump_traceback_later(200, exit=True)
        try:
            check()
            problem = ""
        except BaseException:
            problem = traceback.format_exc()
        with report.open("a") as file:
            file.write(json.dumps([name, problem]) + "\n")
        if problem:
            os._exit(1)  # the other rank may be waiting in a collective; torchrun ends it


def gathered(value: Any) -> list[Any]:
    box: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(box, value)
    return box


def assert_equal_on_ranks(tensors: Any) -> None:
    first, *others = gathered([t.detach().clone() for t in tensors])
    assert first
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0)


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(list(actual), list(expected), rtol=tolerance, atol=tolerance)
