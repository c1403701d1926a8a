"""The batches of several processes made one, for a run in one process that reads them instead of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amp_migrate.verify.traces import Trace


@dataclass(frozen=True)
class Joined:
    """What loaders are to read instead of their own batches; false where there is nothing.

    Attributes:
        batches: by number of the loader and pass, the samples of each batch.
        lengths: by number of the loader, how many batches it says that it has.
    """

    batches: Mapping[str, Sequence[Sequence[int]]]
    lengths: Mapping[str, int]

    def __bool__(self) -> bool:
        return bool(self.batches)


def joined_batches(together: Trace) -> Joined:
    """The batches that all ranks of a run read at the same time, made one, for the loaders that they shared out.

    A loader that every rank read alike stays out.
    """
    found: dict[str, list[list[list[int]]]] = {}
    lengths: dict[str, int] = {}
    for rank in together.ranks:
        for batch in rank.batches:
            pass_ = found.setdefault(f"{batch.loader}/{batch.epoch}", [[] for _ in together.ranks])
            pass_[rank.rank].append(list(batch.indices))
            if batch.length:
                lengths.setdefault(str(batch.loader), batch.length)
    joined = {}
    for key, ranks in found.items():
        # The run was ended from within: one rank may have asked for a batch that the others had not.
        count = min(map(len, ranks))
        whole = all(batch for batches in ranks for batch in batches[:count])
        if count and whole and any(batches[:count] != ranks[0][:count] for batches in ranks):
            joined[key] = [[index for batch in row for index in batch] for row in zip(*ranks, strict=False)]
    shared = {key.partition("/")[0] for key in joined}
    return Joined(joined, {number: length for number, length in lengths.items() if number in shared})
