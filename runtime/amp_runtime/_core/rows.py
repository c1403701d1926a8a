"""Embedding tables whose rows are shared out over the ranks: which tensors hold one rank's rows, and which rows.

Row ``i`` is on rank ``i % ranks``: identifiers are often sorted by how common they are, and blocks of them would leave
most of the work to one rank. A parameter with the rows of one rank is told by an attribute and not by its class, since
optimizers take their fast path for parameters of torch's own class alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

_ATTRIBUTE = "_amp_table"

_tables = 0
_on_main_alone = False
group: Any = None
"""The process group of lookups; it is made with the first table."""


@dataclass(frozen=True, eq=False)
class Table:
    """How the rows of one table are shared out.

    Attributes:
        name: its dotted name, for messages.
        serial: its number, equal on all ranks.
        rows: how many rows it has on all ranks together.
        rank: this rank.
        ranks: the number of ranks.
    """

    name: str
    serial: int
    rows: int
    rank: int
    ranks: int

    @property
    def own(self) -> int:
        """How many rows this rank has."""
        return self.rows_of(self.rank)

    def rows_of(self, rank: int) -> int:
        """How many rows a rank has."""
        return len(range(rank, self.rows, self.ranks))

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's rows of a whole tensor, in memory of their own."""
        return whole.detach()[self.rank :: self.ranks].clone()

    def __deepcopy__(self, memo: dict[int, Any]) -> Table:
        return self


def table_of(tensor: Any) -> Table | None:
    """The table of which a tensor holds this rank's rows; ``None`` for other tensors."""
    return getattr(tensor, _ATTRIBUTE, None)


def has_rows(tensors: Iterable[Any]) -> bool:
    """Whether one of them holds rows of a table; it costs nothing where no table is shared out."""
    return _tables > 0 and any(table_of(tensor) is not None for tensor in tensors)


def mark(tensor: torch.Tensor, table: Table) -> None:
    """Notes that a tensor holds this rank's rows of a table."""
    setattr(tensor, _ATTRIBUTE, table)


def next_serial() -> int:
    """The number of a new table."""
    global _tables
    _tables += 1
    return _tables


def any_tables() -> bool:
    """Whether a table was shared out since ``amp.init``, alive or not: it has to be equal on all ranks."""
    return _tables > 0


@contextmanager
def whole_on_main_alone() -> Iterator[None]:
    """Has the states that are asked for inside hold whole tables on the main process, and ``None`` on the others."""
    global _on_main_alone
    before, _on_main_alone = _on_main_alone, True
    try:
        yield
    finally:
        _on_main_alone = before


def on_main_alone() -> bool:
    """Whether this is such a block."""
    return _on_main_alone


def forget_all() -> None:
    """Forgets the tables, and lets go of the process group; ``amp.shutdown`` does it before it ends the group."""
    global _tables, group
    _tables, group = 0, None
