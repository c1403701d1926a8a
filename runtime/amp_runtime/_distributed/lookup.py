"""Looking up rows that other ranks have: identifiers go to the owners, rows come back, and so do their gradients.

Each rank asks for every row once, however often its batch has it, and reduces and differentiates the rest by itself. So
what travels depends on the batch and on the width of a row, not on the size of the table. Ranks may ask for different
numbers of rows, or for none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from amp_runtime._core import rows
from amp_runtime._core.context import context
from amp_runtime._core.rows import Table
from amp_runtime._distributed import shadow
from amp_runtime._distributed.group import flag_device, inside_main_process_first
from amp_runtime._distributed.passes import end_passes

_FINE, _NO_ROW, _FAILED = range(3)


@dataclass
class _Plan:
    """One lookup.

    Attributes:
        table: what is looked up.
        sparse: whether the gradient is sparse.
        padding: the row whose gradient is dropped, among those of this rank.
        wanted: how many rows this rank asks of each other.
        asked: how many rows each other asks of this one.
        places: which rows these are, among those of this rank.
        counts: for which of them the gradient counts; ``None`` for all.
        device: where the group exchanges.
    """

    table: Table
    sparse: bool
    padding: int | None
    wanted: list[int]
    asked: list[int]
    places: torch.Tensor
    counts: torch.Tensor | None
    device: torch.device


@dataclass
class Found:
    """The rows of a batch.

    Attributes:
        rows: each of them once; differentiable.
        positions: for each identifier of the batch its place among ``rows``.
        padding: the place of the padding row; ``None`` where the batch has none.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    padding: int | None


def look_up(
    weight: torch.Tensor,
    table: Table,
    identifiers: torch.Tensor,
    *,
    sparse: bool,
    padding: int | None,
    problem: Exception | None = None,
) -> Found:
    """Fetches rows from the ranks that have them. A collective.

    Args:
        weight: this rank's rows.
        table: the table.
        identifiers: int32 or int64 of any shape, numbers of rows.
        sparse: whether the gradient of ``weight`` is sparse.
        padding: the number of the row that gets no gradient.
        problem: what this rank found wrong with its input; it is raised when the others know.

    Raises:
        IndexError: some rank asks for a row that the table does not have; on all ranks.
        RuntimeError: some rank has a problem, or looks up another table just now; on all ranks.
    """
    _refuse_to_run_alone(table)
    end_passes()
    widest = table.rows_of(0)
    numbers = identifiers.detach().reshape(-1).to(torch.int64)
    wrong = _first_wrong(numbers, table.rows) if problem is None else None
    if problem is not None or wrong is not None:
        numbers = numbers[:0]
    # By owner, then by place there: the order in which they are sent.
    keys, positions = torch.unique(numbers % table.ranks * widest + numbers // table.ranks, return_inverse=True)
    owners = torch.div(keys, widest, rounding_mode="floor")
    counts = torch.bincount(owners, minlength=table.ranks)
    code = _FAILED if problem is not None else _FINE if wrong is None else _NO_ROW
    device = flag_device(weight.device)
    wanted, asked, idle = _agree(table, counts, code, -1 if wrong is None else wrong, problem, device)
    places = torch.empty(sum(asked), dtype=torch.int64, device=device)
    dist.all_to_all_single(places, (keys % widest).to(device), asked, wanted, group=rows.group)
    mine = padding is not None and padding % table.ranks == table.rank
    at = padding // table.ranks if mine and padding is not None else None
    counting = None
    if any(idle):
        counting = torch.tensor(idle).logical_not().repeat_interleave(torch.tensor(asked)).to(weight.device)
    plan = _Plan(table, sparse, at, wanted, asked, places.to(weight.device), counting, device)
    fetched: torch.Tensor = _Fetch.apply(weight, plan)  # type: ignore[no-untyped-call]
    return Found(fetched, positions, _place_of(padding, keys, table, widest))


def _refuse_to_run_alone(table: Table) -> None:
    if rows.group is None:
        raise RuntimeError(f"{table.name} was looked up after amp.shutdown, which has ended the processes that hold it")
    if inside_main_process_first():
        raise RuntimeError(
            f"{table.name} was looked up inside amp.main_process_first(), where the ranks take turns; all ranks have "
            "to look up its rows together"
        )
    if context.evaluations:
        raise RuntimeError(
            f"{table.name} was looked up in a loop over amp.share_evaluation, where the ranks have different numbers "
            "of batches; evaluate on a loader that every rank reads alike"
        )


def _first_wrong(numbers: torch.Tensor, count: int) -> int | None:
    wrong = numbers[(numbers < 0) | (numbers >= count)]
    return int(wrong[0]) if wrong.numel() else None


def _place_of(padding: int | None, keys: torch.Tensor, table: Table, widest: int) -> int | None:
    if padding is None:
        return None
    found = (keys == padding % table.ranks * widest + padding // table.ranks).nonzero()
    return int(found[0]) if found.numel() else None


def _agree(
    table: Table, counts: torch.Tensor, code: int, wrong: int, problem: Exception | None, device: torch.device
) -> tuple[list[int], list[int], list[bool]]:
    """How many rows this rank and the others want of each other; what one of them found wrong is raised on all.

    The third are the ranks that have no data left and repeat a batch: an optimizer that keeps state by row must not see
    their rows, not even with a gradient of zero.
    """
    sent = torch.empty((table.ranks, 5), dtype=torch.int64)
    sent[:, 0] = counts
    sent[:, 1:] = torch.tensor([table.serial, code, wrong, shadow.shadowing()])
    got = torch.empty_like(sent, device=device)
    dist.all_to_all_single(got, sent.to(device), group=rows.group)
    asked, serials, codes, wrongs, idle = (list(column) for column in zip(*got.tolist(), strict=True))
    if problem is not None:
        raise problem
    for rank, (serial, of_rank, number) in enumerate(zip(serials, codes, wrongs, strict=True)):
        if serial != serials[0]:
            raise RuntimeError(
                f"rank {rank} looks up another table than rank 0, while this one looks up {table.name}; all ranks have "
                "to look up the same tables in the same order"
            )
        if of_rank == _FAILED:
            raise RuntimeError(f"rank {rank} got an input that it cannot look up in {table.name}; its error says why")
        if of_rank == _NO_ROW:
            raise IndexError(
                f"rank {rank} looked up row {number} of {table.name}, which has {table.rows} rows; allowed: 0 to "
                f"{table.rows - 1}"
            )
    return counts.tolist(), asked, list(map(bool, idle))


class _Fetch(torch.autograd.Function):
    """The rows that this rank wants, of the rows that every rank has."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, plan: _Plan) -> torch.Tensor:
        ctx.plan, ctx.shape = plan, weight.shape
        given = weight.index_select(0, plan.places).to(plan.device)
        fetched = given.new_empty((sum(plan.wanted), weight.shape[1]))
        dist.all_to_all_single(fetched, given, plan.wanted, plan.asked, group=rows.group)
        return fetched.to(weight.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        plan: _Plan = ctx.plan
        # As torch's DistributedDataParallel: a mean over the ranks, divided before it is summed.
        sent = gradient.contiguous().to(plan.device) / plan.table.ranks
        arrived = sent.new_empty((sum(plan.asked), ctx.shape[1]))
        dist.all_to_all_single(arrived, sent, plan.asked, plan.wanted, group=rows.group)
        arrived, places = arrived.to(gradient.device), plan.places
        kept = plan.counts
        if plan.padding is not None:
            real = places != plan.padding
            kept = real if kept is None else kept & real
        if kept is not None:
            arrived, places = arrived[kept], places[kept]
        if plan.sparse:
            return torch.sparse_coo_tensor(places.unsqueeze(0), arrived, ctx.shape), None
        return arrived.new_zeros(ctx.shape).index_add_(0, places, arrived), None
