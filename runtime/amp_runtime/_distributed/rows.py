"""Rows of a table that are put together from all ranks, and given out by the main process."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from amp_runtime._core import rows
from amp_runtime._core.context import context
from amp_runtime._core.rows import Table
from amp_runtime._distributed.exchange import as_bytes
from amp_runtime._distributed.group import flag_device

_ELEMENTS = 2**22
"""How many of them are given out in one message."""


def put_together(table: Table, part: torch.Tensor) -> Any:
    """The whole tensor of what every rank has for its rows. A collective.

    Returns:
        The tensor, on the device of ``part``; under :func:`rows.whole_on_main_alone` it is on the CPU of the main
        process, and ``None`` on the others.
    """
    device = part.device
    own = part.detach().contiguous().to(flag_device(device))
    alone = rows.on_main_alone()
    whole = None
    if context.rank == 0 or not alone:
        whole = part.new_empty((table.rows, *part.shape[1:]), device="cpu" if alone else device)
    for rank in range(table.ranks):
        # One part at a time: no rank but those that want all of them holds more than two.
        theirs = own if rank == table.rank else own.new_empty((table.rows_of(rank), *own.shape[1:]))
        dist.broadcast(as_bytes(theirs), src=rank)
        if whole is not None:
            whole[rank :: table.ranks] = theirs.to(whole.device)
    return whole


def give_out(table: Table, whole: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the main process's ``whole``. A collective.

    It goes in pieces, since the main process sends a copy of what it gives out.
    """
    device = flag_device(whole.device)
    width = whole[:1].numel()
    part = whole.new_empty((table.own, *whole.shape[1:]))
    step = max(_ELEMENTS // max(width, 1) // table.ranks, 1) * table.ranks
    for start in range(0, table.rows, step):
        piece = whole.detach()[start : start + step]
        counts = [len(range(rank, len(piece), table.ranks)) for rank in range(table.ranks)]
        received = piece.new_empty((counts[table.rank], *piece.shape[1:]), device=device)
        sending = context.rank == 0
        given = torch.cat([piece[rank :: table.ranks] for rank in range(table.ranks)]) if sending else piece[:0]
        dist.all_to_all_single(
            received,
            given.contiguous().to(device),
            [counts[table.rank] if rank == 0 else 0 for rank in range(table.ranks)],
            counts if sending else [0] * table.ranks,
            group=rows.group,
        )
        part[start // table.ranks : start // table.ranks + counts[table.rank]] = received.to(part.device)
    return part
