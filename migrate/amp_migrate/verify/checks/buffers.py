"""Buffers of modules, such as running statistics, are the original's, and the same on all ranks.

Alone at O0 they are the original's bit for bit. In several processes they are equal on all ranks after equally many
steps, as the parameters are: what one rank alone keeps of its own samples goes into a checkpoint, and into every
evaluation. So are the parameters of copies that no optimizer holds, such as an average of the weights. What only some
ranks have is left out, as is a batch norm's own: running statistics that are not synchronised are left to ``sync-bn``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks.common import Traces, first_rank, is_compared_together, together, together_in_words
from amp_migrate.verify.checks.repeats import unrepeatable
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O0, ORIGINAL, ORIGINAL_AGAIN, Asked

ID = "buffers"
TITLE = "Buffers are the original's, and the same on all ranks"

_FEW = 3
_STATISTICS = ("running_mean", "running_var")


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the buffers at O0 with the original's, and those of the ranks with each other."""
    original, migrated = first_rank(traces, ORIGINAL), first_rank(traces, O0)
    if original is None:
        return
    if migrated is not None and original.parameters == migrated.parameters and original.buffers != migrated.buffers:
        yield _unlike(traces, _names(original.buffers, migrated.buffers))
        return
    ranks = together(traces)
    if ranks and not is_compared_together(traces) and len({len(rank.backwards) for rank in ranks}) == 1:
        own_norm = any("batch_norm" in rank.events for rank in ranks)
        differing = sorted({name for rank in ranks[1:] for name in _apart(ranks[0].buffers, rank.buffers)})
        differing = [name for name in differing if not (own_norm and name in _STATISTICS)]
        if differing:
            message = (
                f"Of {len(ranks)} ranks {_listed(differing)} differ at the end. What is updated from a rank's own "
                "samples has to be averaged over the ranks: prepare the module with amp.prepare_model."
            )
            yield Check(ID, TITLE, "disproved", message)
            return
        copies = sorted({name for rank in ranks[1:] for name in _apart(ranks[0].unheld, rank.unheld)})
        if copies:
            message = (
                f"Parameters of copies of a model ({together_in_words(copies[:_FEW])}), such as an average of its "
                "weights, are others on each rank at the end. Copy the model after it was prepared, and change copies "
                "on all ranks alike."
            )
            yield Check(ID, TITLE, "disproved", message)
            return
    if original.buffers and migrated is not None and original.buffers == migrated.buffers:
        own_norm = any("batch_norm" in rank.events for rank in ranks)
        also = f", and {len(ranks)} ranks have the same" if ranks and not own_norm else ""
        yield Check(ID, TITLE, "proved", f"{plural(len(original.buffers), 'buffer')} at O0 are the original's{also}.")


def _unlike(traces: Traces, names: Sequence[str]) -> Check:
    words = f"At O0 {_listed(names)} are not the original's at the end, though all parameters are."
    reason = unrepeatable(traces) if ORIGINAL_AGAIN in traces else ""
    if reason:
        return Check(ID, TITLE, "unproved", f"{words} {reason}")
    message = f"{words} Look for modules that run more or less often, in training or in evaluation mode."
    return Check(ID, TITLE, "disproved", message)


def _listed(names: Sequence[str]) -> str:
    left = len(names) - _FEW
    return f"the buffers {together_in_words([*names[:_FEW], *([f'{left} more'] if left > 0 else [])])}"


def _names(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """The names of the buffers that only one side has with these numbers."""
    return sorted({fact.partition(" ")[0] for fact in set(one) ^ set(other)})


def _apart(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """The names of those that both ranks have equally many of, with other numbers."""
    found = []
    for facts in (one, other):
        by_name: defaultdict[str, set[str]] = defaultdict(set)
        for fact in facts:
            name, _, numbers = fact.rpartition(" ")
            by_name[name].add(numbers)
        found.append(by_name)
    first, second = found
    return [
        name.partition(" ")[0]
        for name in sorted(first.keys() & second.keys())
        if len(first[name]) == len(second[name]) and first[name] != second[name]
    ]
