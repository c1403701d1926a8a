"""State that is carried from batch to batch goes on in the rows that it belongs to.

A recurrent network that is given, with each batch, the state that it came to in the batch before has data laid out for
that: row k of a batch goes on where row k of the batch before ended. Sharing such data out by samples or by batches
gives each process other rows to follow each other. A state is told by the memory that a module's output lies in, which
it is given again with a later batch.

It holds where rows that follow each other on a rank do so in the original. Where they do not, it stays open: what the
state means only its author knows. Nothing is said of data that the original itself reads in another order each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from amp_migrate.verify.checks.common import Traces, first_rank, keeps_its_own, together, together_in_words
from amp_migrate.verify.checks.loaders import epochs, indices, training_loaders
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import ORIGINAL, Asked
from amp_migrate.verify.traces import Batch, RankTrace

ID = "carried"
TITLE = "State that is carried over stays with its rows"

_Pairs = set[tuple[int, int]]


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare which samples follow each other in a row."""
    ranks, original = together(traces), first_rank(traces, ORIGINAL)
    if not ranks or original is None or keeps_its_own(traces, asked):
        return
    sites = list(dict.fromkeys(site for rank in ranks for site in rank.followed.carried))
    if not sites:
        return
    where = together_in_words(sites)
    carried = f"At {where} a state goes on from batch to batch"
    loaders = [loader for loader in training_loaders(ranks[0]) if _is_known((original, *ranks), loader)]
    if not loaders:
        if _are_dealt_out(ranks, original):
            message = f"{carried}, and each process gets other batches than those that follow each other. {_WHAT_TO_DO}"
            yield Check(ID, TITLE, "unproved", message)
        return
    ordered = [loader for loader in loaders if _is_ordered(original, loader)]
    for loader in ordered:
        right = _following(epochs(original, loader))
        for rank in ranks:
            other = sorted(_following(epochs(rank, loader)) - right)
            if other:
                (before, after), goes_on = other[0], sorted(two for one, two in right if one == other[0][0])
                instead = f", in the original by sample {goes_on[0]}" if goes_on else ""
                message = (
                    f"{carried}, and on rank {rank.rank} sample {before} is followed in its row by sample {after}"
                    f"{instead}. {_WHAT_TO_DO}"
                )
                yield Check(ID, TITLE, "unproved", message)
                return
    if ordered:
        yield Check(ID, TITLE, "proved", f"{carried}, and in each row the samples follow each other as before.")


_WHAT_TO_DO = "Give each process whole rows of the data, in their order, or begin each batch with a new state."


def _is_known(ranks: Sequence[RankTrace], loader: int) -> bool:
    batches = [[batch for batch in rank.batches if batch.loader == loader] for rank in ranks]
    return all(batches) and all(batch.indices for part in batches for batch in part)


def _is_ordered(original: RankTrace, loader: int) -> bool:
    """Whether the data has one order: that of its places, or the same in each pass."""
    found = [indices(part) for part in epochs(original, loader)]
    if all(part == sorted(part) for part in found):
        return True
    shortest = min(map(len, found))
    return len(found) > 1 and all(part[:shortest] == found[0][:shortest] for part in found)


def _following(passes: Sequence[Sequence[Batch]]) -> _Pairs:
    """Which sample follows which in a row, within a pass."""
    return {
        pair
        for part in passes
        for before, after in pairwise(part)
        for pair in zip(before.indices, after.indices, strict=False)
    }


def _are_dealt_out(ranks: Sequence[RankTrace], original: RankTrace) -> bool:
    """Whether a rank begins with data that the original comes to in a later step."""
    later = {rows for step in original.backwards[1:] for rows in step.inputs}
    first = {rows for step in original.backwards[:1] for rows in step.inputs}
    return any(rows in later - first for rank in ranks[1:] for step in rank.backwards[:1] for rows in step.inputs)
