"""What a version that makes int8 models does behind its training, taken out of its runs in which it makes none.

A version that was given keeps its lines there, though it is run without int8: it evaluates once more, prints that, and
saves the model. What the original does behind its own training has to be there all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from amp_migrate.verify.printed import line
from amp_migrate.verify.traces import Batch, RankTrace, Said, Trace, WrittenFile

_MARK = "amp_quantized"
"""The key that ``amp.save_quantized`` writes."""


def without_int8(trace: Trace, original: Trace) -> Trace:
    """A run as it would be without what the version adds behind its training; itself where it did not end.

    Args:
        trace: of the migrated version.
        original: the run of the original.
    """
    if trace.status != "ended" or not trace.usable or not original.usable:
        return trace
    right = original.ranks[0]
    ranks = tuple(_without(rank, right) for rank in trace.ranks)
    pairs = zip(trace.printed, trace.ranks, ranks, strict=False)
    printed = tuple(_printed(text, before.said, after.said) for text, before, after in pairs)
    return replace(trace, ranks=ranks, printed=printed, files=tuple(_but_int8(trace.files)))


def _but_int8(files: Iterable[WrittenFile]) -> Iterable[WrittenFile]:
    return (file for file in files if all(entry.key != _MARK for entry in file.entries))


def _without(rank: RankTrace, right: RankTrace) -> RankTrace:
    end, of_original = len(rank.backwards), len(right.backwards)
    there = _sentences(said for said in right.said if said.before == of_original)
    return replace(
        rank,
        said=tuple(_said(rank.said, end, there)),
        batches=tuple(_batches(rank.batches, end, [batch for batch in right.batches if batch.before == of_original])),
    )


def _said(said: Sequence[Said], end: int, there: Sequence[str]) -> Iterable[Said]:
    """The lines without those behind the training that the original has not; all of them where it has others."""
    left, added = list(there), set()
    for number, one in enumerate(said):
        if one.before != end:
            continue
        found = _sentences([one])
        if found and left and found[0] == left[0]:
            del left[0]
        elif found:
            added.add(number)
    return said if left else [one for number, one in enumerate(said) if number not in added]


def _sentences(said: Iterable[Said]) -> list[str]:
    return [found.sentence for one in said if (found := line(one.text)) is not None and not one.by_apex]


def _printed(text: str, before: Sequence[Said], after: Sequence[Said]) -> str:
    """The text of standard output without the lines that are not noted any more."""
    noted = [one for one in before if not one.silent]
    raws = text.split("\n")
    if len(noted) == len([one for one in after if not one.silent]) or len(raws) - (not raws[-1]) != len(noted):
        return text
    kept = {id(one) for one in after}
    lines = [raw for raw, one in zip(raws, noted, strict=False) if id(one) in kept]
    return "\n".join([*lines, *raws[len(noted) :]])


def _batches(batches: Sequence[Batch], end: int, there: Sequence[Batch]) -> Iterable[Batch]:
    """The batches without the passes behind the training that the original does not make."""
    passes: dict[int, set[int]] = {}
    for batch in there:
        passes.setdefault(batch.loader, set()).add(batch.epoch)
    kept: dict[int, set[int]] = {}
    for batch in batches:
        if batch.before == end:
            epochs = kept.setdefault(batch.loader, set())
            if batch.epoch not in epochs and len(epochs) >= len(passes.get(batch.loader, ())):
                continue
            epochs.add(batch.epoch)
        yield batch
