"""All processes hold the same parameters at the end, after equally many steps.

Each process starts from the same weights and applies the same averaged gradients, so the bytes of the parameters are
equal. They are not where a model is not wrapped for DDP, or is changed on one rank alone. A sharded model is there
once, and so are the rows of tables that are shared out; what the processes compute with them is compared by other
checks.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks import ways
from amp_migrate.verify.checks.common import Traces, at, is_compared_together, together
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import Asked

ID = "ranks-agree"
TITLE = "All processes hold the same parameters"


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the processes with each other."""
    ranks = together(traces)
    if not ranks or is_compared_together(traces):
        return
    for what, counts in (
        ("backward calls", [len(rank.backwards) for rank in ranks]),
        ("optimizer steps", [len(rank.updates) for rank in ranks]),
    ):
        if len(set(counts)) > 1:
            listed = ", ".join(f"rank {rank.rank}: {count}" for rank, count in zip(ranks, counts, strict=True))
            message = (
                f"The processes make different numbers of {what} ({listed}).{ways.parting_in_words(ranks)} Give all of "
                "them equally many batches: amp.prepare_loader does."
            )
            yield Check(ID, TITLE, "disproved", message)
            return
    if not any(rank.parameters for rank in ranks):
        message = "No optimizer was seen, so the processes' parameters are not known."
        yield Check(ID, TITLE, "unproved", message)
    elif all("sharded" in rank.events for rank in ranks):
        message = (
            f"After {plural(len(ranks[0].updates), 'step')} each of {len(ranks)} processes has its own part of the "
            "parameters, so that no two can differ."
        )
        yield Check(ID, TITLE, "proved", message)
    elif len({rank.parameters for rank in ranks}) > 1:
        yield Check(ID, TITLE, "disproved", _apart(traces))
    else:
        message = (
            f"After {plural(len(ranks[0].updates), 'step')} the parameters of {len(ranks)} processes are the same."
        )
        if "rows_shared_out" in ranks[0].events:
            message += " Of tables that are shared out each has its own rows."
        yield Check(ID, TITLE, "proved", message)


def _apart(traces: Traces) -> str:
    ranks = together(traces)
    for index, updates in enumerate(zip(*(rank.updates for rank in ranks), strict=True)):
        if len({update.norm.hex() for update in updates}) > 1:
            step = ranks[0].backwards[max(0, updates[0].after - 1)]
            norms = ", ".join(f"{update.norm:.6g}" for update in updates)
            return (
                "The processes' parameters differ at the end. Their gradients first differ at optimizer step "
                f"{index + 1} "
                f"(after {at(step)}): norms {norms}. They are not averaged there: the model, or the part of it that "
                "this optimizer trains, is not wrapped by amp.prepare_model."
            )
    same = "The processes' parameters differ at the end, though their gradients are the same."
    if sites := ways.changing_weights(ranks):
        return (
            f"{same} Weights are changed outside of the optimizers at {sites}: all ranks have to change them alike. "
            "What is drawn for it is drawn once for all by amp.drawn_alike."
        )
    return (
        f"{same} They start from different weights, or something changes weights on one rank alone: prepare the model "
        "after its weights are initialised."
    )
