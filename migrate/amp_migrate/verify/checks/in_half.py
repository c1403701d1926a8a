"""At the levels from O1 on every backward call starts from a loss that was computed in half.

The products that led to a loss (of layers, matrices, attention) are counted by the type they were computed in, for
the first calls of each backward call of the script. One that has only products in float32 behind it was left out of
autocast. Some in float32 beside others in half are as it should be: a script may say so, and a level keeps some
operations there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from amp_migrate.verify.checks.common import Traces, lossy_runs, percent, site_numbers, together_in_words
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import Asked
from amp_migrate.verify.traces import Backward, RankTrace

ID = "half"


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Look at what leads to every backward call at each level."""
    if asked.precision not in ("migrated", "unknown"):
        return
    for level, trace in lossy_runs(traces):
        yield _judge(level, trace.ranks[0])


def _judge(level: str, rank: RankTrace) -> Check:
    id_, title = f"{level.lower()}-{ID}", f"{level} computes in half what every backward call starts from"
    sites: defaultdict[int, list[Backward]] = defaultdict(list)
    for number, step in zip(site_numbers(rank.backwards), rank.backwards, strict=True):
        sites[number].append(step)
    half = {number: sum(step.half for step in steps) for number, steps in sites.items()}
    full = {number: sum(step.full for step in steps) for number, steps in sites.items()}
    name = {number: steps[0].site or "the backward call" for number, steps in sites.items()}
    if "amp" not in rank.events and not any(half.values()):
        message = "The runtime was never started, so all was computed in float32. Does an argument turn it on?"
        return Check(id_, title, "unproved", message)
    left_out = [name[number] for number in sites if full[number] and not half[number]]
    if left_out:
        message = (
            f"Nothing was computed in half for the backward call at {together_in_words(left_out)}: its forward pass is "
            "not under autocast. Put `with amp.autocast():` around the model's call and the loss."
        )
        return Check(id_, title, "disproved", message)
    if not any(half.values()):
        message = "No layer or matrix product leads to any backward call, so it is not known what was computed in half."
        return Check(id_, title, "unproved", message)
    shares = [
        f"{percent(half[number] / (half[number] + full[number]))} of the products behind {name[number]}"
        for number in sites
        if half[number]
    ]
    return Check(id_, title, "proved", f"In half were computed {together_in_words(shares)}.")
