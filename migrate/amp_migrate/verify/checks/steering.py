"""All processes take the same decisions.

A learning rate, a schedule and the end of the training are decided by numbers, and each rank has to decide by the same
ones: by those of all ranks, not by its own loss. At each update all ranks have the same learning rates, the metrics
that schedules are given are equal on all of them, and they make equally many passes over the training data. A
difference shows before it leads ranks apart, which then wait for each other for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks import ways
from amp_migrate.verify.checks.common import Traces, at, keeps_its_own, pair, talk, together
from amp_migrate.verify.checks.passes import passes, training
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O0_TOGETHER, Asked
from amp_migrate.verify.traces import RankTrace

ID = "steering"
TITLE = "All processes take the same decisions"


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the ranks' learning rates, metrics and passes."""
    trace = traces.get(O0_TOGETHER)
    if trace is None or keeps_its_own(traces, asked) or not talk(trace.ranks):
        return
    # Up to where a run failed, it may show why.
    wrong = _metrics(trace.ranks) or _rates(trace.ranks)
    ranks = together(traces)
    if not wrong and ranks:
        wrong = _passes(ranks)
    if wrong:
        yield Check(ID, TITLE, "disproved", wrong)
    if wrong or not ranks:
        return
    if open_ := _trained(ranks):
        yield Check(ID, TITLE, "unproved", open_)
        return
    count = len(ranks[0].metrics)
    also = f", and {plural(count, 'metric')} that schedules decided by" if count else ""
    yield Check(ID, TITLE, "proved", f"Learning rates at {plural(len(ranks[0].updates), 'step')} are the same{also}.")


def _trained(ranks: Sequence[RankTrace]) -> str:
    """Whether the ranks train other parts of the model in a step, and draw what may choose them by themselves.

    A layer that is dropped at random is such a part, too, so it is no disproof.
    """
    drawn = ways.drawing_apart(ranks)
    for number, row in enumerate(zip(*(rank.followed.reached for rank in ranks), strict=False)):
        if drawn and len(set(row)) > 1:
            listed = ", ".join(f"rank {rank.rank}: {count}" for rank, (_, count) in zip(ranks, row, strict=True))
            return (
                f"At step {number + 1} ({at(ranks[0].backwards[number])}) the ranks' losses lead back to different "
                f"parameters ({listed}), and each rank draws numbers of its own at {drawn}. What chooses the part of a "
                "model that is trained is drawn once for all, by amp.drawn_alike."
            )
    return ""


def _metrics(ranks: Sequence[RankTrace]) -> str:
    for number, row in enumerate(zip(*(rank.metrics for rank in ranks), strict=False)):
        if len({value.hex() for _, value in row}) > 1:
            first, second = pair(row[0][1], next(value for _, value in row if value.hex() != row[0][1].hex()))
            sites = ranks[0].metric_sites[number : number + 1]
            after = f"After {at(ranks[0].backwards[max(0, row[0][0] - 1)])}"
            where = f"At {sites[0]}" if any(sites) else after
            return (
                f"{where} the schedule decides by a number of each rank's own: {first} "
                f"and {second}. Average it over the ranks first, by amp.reduce_mean."
            )
    return ""


def _rates(ranks: Sequence[RankTrace]) -> str:
    for number, row in enumerate(zip(*(rank.updates for rank in ranks), strict=False)):
        if len({(update.lr, update.rates) for update in row}) > 1:
            listed = ", ".join(f"rank {rank.rank}: {update.lr:g}" for rank, update in zip(ranks, row, strict=True))
            where = at(ranks[0].backwards[max(0, row[0].after - 1)])
            return f"At optimizer step {number + 1} (after {where}) the ranks' learning rates differ ({listed})."
    return ""


def _passes(ranks: Sequence[RankTrace]) -> str:
    counts = [{key: len(part) for key, part in training(passes(rank, ended=True)).items()} for rank in ranks]
    if any(other != counts[0] for other in counts[1:]):
        listed = ", ".join(f"rank {rank.rank}: {sum(part.values())}" for rank, part in zip(ranks, counts, strict=True))
        where = at(ranks[0].backwards[-1])
        return (
            f"The ranks make other numbers of passes over the data before {where} ({listed}). They must end together."
            f"{ways.parting_in_words(ranks)}"
        )
    return ""
