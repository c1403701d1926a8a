"""The migrated script ends as the original does.

At O0 it ends by itself after as many backward calls and passes over its data, or goes on as long; its last line on
standard output is the original's. In several processes it ends by itself where the original does, after as many passes
over a loader that it trains on, or as the original on the joined batches of all ranks. Where a number that was measured
decides when training stops, another number of passes is no mistake, so it is left open; so is one of a script that
counts steps.

That each run exits as the original does is a part of ``runs``.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_migrate.out.terminal import plural
from amp_migrate.verify import printed
from amp_migrate.verify.checks.common import Traces, keeps_its_own, together
from amp_migrate.verify.checks.loaders import training_loaders
from amp_migrate.verify.checks.outputs import calls, quoted, repeats, where
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O0, O0_TOGETHER, ORIGINAL, ORIGINAL_MERGED, Asked
from amp_migrate.verify.traces import RankTrace, Trace

ID = "o0-ending"
TITLE = "O0 ends as the original does"

TOGETHER_ID = "together-ending"


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the ends of the runs that went to their ends."""
    original = traces.get(ORIGINAL)
    if original is None or original.status != "ended" or not original.usable:
        return
    if repeats(traces, O0) and traces[O0].status == "ended":
        yield _alone(original, traces[O0])
    ranks = together(traces)
    if ranks and not keeps_its_own(traces, asked):
        yield from _together(original, traces[O0_TOGETHER], traces.get(ORIGINAL_MERGED))


def _alone(original: Trace, run: Trace) -> Check:
    passes = passes_by_loader(original.ranks[0]), passes_by_loader(run.ranks[0])
    if passes[0] != passes[1]:
        message = f"It makes {_in_words(passes[1])} over its loaders, the original {_in_words(passes[0])}."
        return Check(ID, TITLE, "disproved", message)
    message = f"Both end by themselves after {plural(calls(original), 'backward call')}"
    return Check(ID, TITLE, "proved", f"{message} and {_in_words(passes[0])}.")


def _together(original: Trace, run: Trace, merged: Trace | None) -> Iterator[Check]:
    title = f"{run.processes} processes end as the original does"
    if run.status != "ended":
        # They make 1/N as many calls, so they were to come to their end within the same bound.
        if calls(run) >= calls(original):
            message = f"They had not ended after {plural(calls(run), 'backward call')}; the original ends after "
            yield Check(TOGETHER_ID, title, "unproved", f"{message}{calls(original)}. It may count steps.")
        return
    passes = [passes_by_loader(rank) for rank in (original.ranks[0], *run.ranks)]
    apart = next((number for number, found in enumerate(passes[2:], 1) if found != passes[1]), None)
    if apart is not None:
        message = f"Rank {apart} makes {_in_words(passes[apart + 1])} over its loaders, rank 0 {_in_words(passes[1])}."
        yield Check(TOGETHER_ID, title, "unproved", message)
        return
    joined = passes_by_loader(merged.ranks[0]) if merged is not None and merged.status == "ended" else None
    # One that is begun again whenever it is exhausted beside another makes passes by its length.
    epochs = any(passes[0][loader] == passes[1].get(loader) for loader in training_loaders(original.ranks[0]))
    if passes[1] not in (passes[0], joined) and not epochs:
        message = f"They make {_in_words(passes[1])} over their loaders, the original {_in_words(passes[0])}."
        reason = "A number that is measured, or one of steps, may decide when training ends."
        yield Check(TOGETHER_ID, title, "unproved", f"{message} {reason}")
        return
    lines = printed.printed_by(original)[-1:], printed.printed_by(run)[-1:]
    if lines[0] and lines[1] and lines[0][0].sentence != lines[1][0].sentence:
        place = where(lines[0][0], lines[1][0])
        message = f"The last line is {quoted(lines[1][0])}, the original's {quoted(lines[0][0])}{place}."
        yield Check(TOGETHER_ID, title, "unproved", message)
        return
    message = f"All end by themselves after {_in_words(passes[1])} over the data, as the original."
    yield Check(TOGETHER_ID, title, "proved", message)


def passes_by_loader(rank: RankTrace) -> dict[int, int]:
    """How often each loader was read."""
    found: dict[int, set[int]] = {}
    for batch in rank.batches:
        found.setdefault(batch.loader, set()).add(batch.epoch)
    return {loader: len(passes) for loader, passes in sorted(found.items())}


def _in_words(passes: dict[int, int]) -> str:
    total = sum(passes.values())
    return f"{total} {'pass' if total == 1 else 'passes'}"
