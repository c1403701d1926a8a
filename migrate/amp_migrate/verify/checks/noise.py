"""Each process draws random numbers of its own for its samples, and dropout masks of its own.

Where all ranks have the same seed, they draw the same augmentation for different samples, and the same masks: the N
samples of a step are less different than those of one process. So whatever draws between a batch and its backward call,
or to fetch a sample in this process or in a loader's worker, must be in another state on each rank. Numbers that choose
for all, such as a task, are drawn outside of that, or of Python's generator: for steps only torch's generators count.

A version made by hand often has one seed on all ranks. That is the choice of its author, which costs variety and no
correct gradient: it stays open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks.common import Traces, at, first_rank, keeps_its_own, together, together_in_words
from amp_migrate.verify.evidence import Check, Verdict
from amp_migrate.verify.plan import ORIGINAL, Asked
from amp_migrate.verify.traces import RankTrace

ID = "noise"
TITLE = "Each process draws random numbers of its own for its samples"

_WHAT_TO_DO = (
    "Loop over amp.prepare_loader(loader), or call amp.seed_by_rank() before the loop: then each draws its own."
)


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the states of the generators that draw for samples and in steps."""
    ranks = together(traces)
    if not ranks or keeps_its_own(traces, asked):
        return
    alike_is: Verdict = "unproved" if asked.native else "disproved"
    steps = [[_of_torch(step.drew) for step in rank.backwards] for rank in ranks]
    fetched = [[batch.drew for batch in rank.batches if batch.learns] for rank in ranks]
    drawn = []
    for rows, what in ((fetched, "to fetch samples"), (steps, "in its steps, such as for dropout,")):
        alike, known = _alike(rows)
        if known and alike * 2 > known:
            message = (
                f"All {len(ranks)} processes draw the same random numbers {what} at {alike} of {known} places "
                f"({at(ranks[0].backwards[0])}). {_WHAT_TO_DO}"
            )
            yield Check(ID, TITLE, alike_is, message)
            return
        drawn += [what.partition(",")[0]] if known else []
    if shared := _workers(ranks):
        message = (
            f"Worker processes of different ranks begin with the same random numbers for samples ({shared}), and so "
            f"draw the same augmentation. {_WHAT_TO_DO}"
        )
        yield Check(ID, TITLE, alike_is, message)
        return
    if what := _not_their_own(traces, ranks):
        message = (
            f"The original draws random numbers {what} ({at(ranks[0].backwards[0])}), the processes draw none of their "
            "own there: they are the same on all ranks, or left out. Only what chooses for all ranks is drawn alike."
        )
        yield Check(ID, TITLE, "unproved", message)
        return
    drawn += ["in workers of loaders"] if all(rank.worker_draws for rank in ranks) else []
    if drawn:
        yield Check(ID, TITLE, "proved", f"Each rank draws different numbers {together_in_words(drawn)}.")


def _not_their_own(traces: Traces, ranks: Sequence[RankTrace]) -> str:
    """Where the original mostly draws and no rank does, as when each goes on with numbers that all share."""
    original = first_rank(traces, ORIGINAL)
    if original is None:
        return ""
    places = (
        ("to fetch samples", [[batch.drew for batch in rank.batches if batch.learns] for rank in (original, *ranks)]),
        ("in its steps", [[_of_torch(step.drew) for step in rank.backwards] for rank in (original, *ranks)]),
    )
    for words, (own, *others) in places:
        if sum(map(bool, own)) * 2 > len(own) and not any(any(part) for part in others):
            return words
    return ""


def _of_torch(drew: Sequence[str]) -> tuple[str, ...]:
    return tuple(state for state in drew if state.startswith(("torch:", "cuda")))


def _alike(rows: Sequence[Sequence[Sequence[str]]]) -> tuple[int, int]:
    """At how many places all ranks drew from the same state, and at how many all drew."""
    found = [row for row in zip(*rows, strict=False) if all(row)]
    return sum(bool(set(row[0]).intersection(*row[1:])) for row in found), len(found)


def _workers(ranks: Sequence[RankTrace]) -> str:
    """How many workers began alike on any two ranks; empty if none."""
    counts: dict[str, int] = {}
    for rank in ranks:
        for draw in rank.worker_draws:
            counts[draw] = counts.get(draw, 0) + 1
    alike = {draw for draw, count in counts.items() if count > 1}
    return plural(len(alike), "generator") if alike else ""
