"""At the levels from O1 on every backward call starts from a loss that was computed in half.

The products that led to a loss (of layers, matrices, attention) are counted by the type they were computed in, for
the first calls of each backward call of the script. One that has only products in float32 behind it was left out of
autocast. Some in float32 beside others in half are as it should be: a script may say so, and a level keeps some
operations there. The backward call itself stands outside of autocast, as torch asks for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from amp_migrate.verify.checks.common import Traces, lossy_runs, percent, site_numbers, together, together_in_words
from amp_migrate.verify.checks.reference import reference, reference_run
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O1_FP16, O1_TOGETHER, Asked
from amp_migrate.verify.traces import Backward, RankTrace, Trace

ID = "half"


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Look at what leads to every backward call at each level, in one process and in several."""
    if asked.precision not in ("migrated", "unknown"):
        return
    for name, trace in lossy_runs(traces):
        if name != O1_FP16:  # the regions are those of O1
            yield from _judge(traces, f"{name.lower()}-{ID}", name, trace, trace.ranks[0])
    for rank in together(traces, O1_TOGETHER)[:1]:
        trace = traces[O1_TOGETHER]
        yield from _judge(traces, f"o1-together-{ID}", f"O1 in {trace.processes} processes", trace, rank)


def _judge(traces: Traces, id_: str, name: str, trace: Trace, rank: RankTrace) -> Iterator[Check]:
    title = f"{name} computes in half what every backward call starts from"
    sites: defaultdict[int, list[Backward]] = defaultdict(list)
    for number, step in zip(site_numbers(rank.backwards), rank.backwards, strict=True):
        sites[number].append(step)
    half = {number: sum(step.half for step in steps) for number, steps in sites.items()}
    full = {number: sum(step.full for step in steps) for number, steps in sites.items()}
    places = {number: steps[0].site or "the backward call" for number, steps in sites.items()}
    missed = [number for number in sites if full[number] and not half[number]]
    left_out = [places[number] for number in missed]
    trains = [places[number] for number in missed if _trains(rank, number)]
    if not any(half.values()) and not {"amp", "autocast"} & set(rank.events):
        message = (
            "Neither the runtime nor torch.autocast was turned on, so all was computed in float32. Does an argument "
            "turn it on, or is it for a GPU only?"
        )
        yield Check(id_, title, "unproved", message)
    elif left_out and _is_lacking(traces, trace):
        message = (
            f"Nothing was computed in half for the backward call at {together_in_words(left_out)}. The original "
            "fails under torch's own autocast on this device, which may have no half-precision kernel for it."
        )
        yield Check(id_, title, "unproved", message)
    elif left_out and not trains:
        message = (
            f"Nothing was computed in half for the backward call at {together_in_words(left_out)}. Steps of the "
            "optimizers come without it, so it may only look at gradients, which needs no half precision."
        )
        yield Check(id_, title, "unproved", message)
    elif left_out:
        message = (
            f"Nothing was computed in half for the backward call at {together_in_words(trains)}: its forward pass is "
            "not under autocast. Put autocast around the model's call and the loss."
        )
        yield Check(id_, title, "disproved", message)
    elif under_autocast := sorted({step.site or "a backward call" for step in rank.backwards if step.autocast}):
        message = (
            f"backward is called under autocast at {together_in_words(under_autocast)}, so it is not known in which "
            "type gradients are computed there. End the region after the loss."
        )
        yield Check(id_, title, "unproved", message)
    elif any(half.values()):
        shares = [
            f"{percent(half[number] / (half[number] + full[number]))} of the products behind {places[number]}"
            for number in sites
            if half[number]
        ]
        yield Check(id_, title, "proved", f"Half precision computed {together_in_words(shares)}.")
    elif not _has_none(traces, trace):
        message = "No layer or matrix product leads to any backward call, so it is not known what was computed in half."
        yield Check(id_, title, "unproved", message)


def _trains(rank: RankTrace, number: int) -> bool:
    """Whether an optimizer steps right after a backward call of the script, or never without it.

    Args:
        rank: what a process recorded.
        number: the call, by where it stands.
    """
    calls = {index for index, site in enumerate(site_numbers(rank.backwards), start=1) if site == number}
    steps: defaultdict[int, list[int]] = defaultdict(list)
    for update in rank.updates:
        steps[update.optimizer].append(update.after)
    if not steps or any(after in calls for own in steps.values() for after in own):
        return True
    return any(
        all(not calls.isdisjoint(range(before + 1, after + 1)) for before, after in pairwise([0, *own]))
        for own in steps.values()
    )


def _is_lacking(traces: Traces, trace: Trace) -> bool:
    """Whether torch's own autocast does not get the original through in this type."""
    found = reference_run(traces, trace)
    return found is not None and not found.usable


def _has_none(traces: Traces, trace: Trace) -> bool:
    """Whether there are no products in the original either, so that nothing in it is computed in half."""
    plain = reference(traces, trace)
    return plain is not None and not any(step.half or step.full for step in plain.backwards)
