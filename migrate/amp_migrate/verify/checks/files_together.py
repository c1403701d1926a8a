"""Several processes write the files that the original writes, once, and the original can read them.

Names are the same, where numbers in them, such as those of epochs and steps, may be others. Checkpoints have the same
keys, types and shapes, and hold objects of no other class: no ``module.`` in front of names, no wrapper saved whole. A
text has no more lines than the original's, and none that every rank wrote; one that grows with the steps has fewer, and
one that grows with the passes over the data as many for each pass.

A checkpoint that several ranks save under one name is disproof: they write at the same time, so it may be torn. So is
a file that cannot be read to its end. A file that is there only in one of the two, where the other run writes others,
may depend on a number that was measured, and is left open.

Only runs that went to their ends are compared, and only of scripts written for one process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks.common import Traces, keeps_its_own, together, together_in_words
from amp_migrate.verify.checks.counts import is_of_samples, is_of_steps
from amp_migrate.verify.checks.ending import passes_by_loader
from amp_migrate.verify.checks.files import (
    by_name,
    compared_entries,
    is_array,
    other_keys,
    strange_classes,
    where_written,
)
from amp_migrate.verify.checks.loaders import training_loaders
from amp_migrate.verify.evidence import Check, Verdict
from amp_migrate.verify.plan import O0_TOGETHER, ORIGINAL, Asked
from amp_migrate.verify.traces import Entry, RankTrace, Trace, WrittenFile

ID = "together-files"

Finding = tuple[Verdict, str]


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the files of all processes with the original's."""
    ranks, original = together(traces), traces.get(ORIGINAL)
    if not ranks or original is None or keeps_its_own(traces, asked):
        return
    run = traces[O0_TOGETHER]
    if not (run.status == original.status == "ended") or not (original.files or run.files):
        return
    title = f"{len(ranks)} processes write the files that the original writes"
    findings = [*_names(original, run), *_several_ranks(run), *_contents(original, run)]
    for verdict in ("disproved", "unproved"):
        for found, message in findings:
            if found == verdict:
                yield Check(ID, title, found, message)
                return
    message = f"{plural(len(run.files), 'file').capitalize()} with what the original's hold."
    yield Check(ID, title, "proved", message)


def _pattern(name: str) -> str:
    return re.sub(r"\d+(?:\.\d+)?", "#", name)


def _by_pattern(trace: Trace) -> dict[str, WrittenFile]:
    """The last file of each name, where names that differ in numbers count as one."""
    return {_pattern(name): file for name, file in by_name(trace).items()}


def _names(original: Trace, run: Trace) -> Iterator[Finding]:
    right, mine = _by_pattern(original), _by_pattern(run)
    if right and not right.keys() & mine.keys():
        first = next(iter(right.values())).name
        yield "disproved", f"No file of the original's is written, such as {first}{where_written(original, first)}."
        return
    for key in sorted(right.keys() - mine.keys()):
        yield "unproved", f"{right[key].name}{where_written(original, right[key].name)} is not written."
    for key in sorted(mine.keys() - right.keys()):
        yield "unproved", f"{mine[key].name}{where_written(run, mine[key].name)} is written, and not by the original."


def _several_ranks(run: Trace) -> Iterator[Finding]:
    """Files that more than one rank writes from their beginning."""
    kinds = {file.name: file.kind for file in run.files}
    for name, kind in sorted(kinds.items()):
        writers = [rank.rank for rank in run.ranks if any(one.name == name and not one.adds for one in rank.opened)]
        if len(writers) < 2:
            continue
        message = f"{name}{where_written(run, name)} is written by {len(writers)} processes at the same time."
        verdict: Verdict = "disproved" if kind in ("values", "unreadable") else "unproved"
        yield verdict, f"{message} Let rank 0 alone write it."


def _contents(original: Trace, run: Trace) -> Iterator[Finding]:
    right, mine = _by_pattern(original), _by_pattern(run)
    for key in sorted(right.keys() & mine.keys()):
        one, two = right[key], mine[key]
        name = f"{two.name}{where_written(original, one.name)}"
        if one.kind != two.kind:
            verdict: Verdict = "disproved" if two.kind == "unreadable" or one.kind == "values" else "unproved"
            yield verdict, f"{name} is {_kind(two)}, the original's {_kind(one)}."
        elif one.kind == "text":
            yield from _lines(name, one, two, original, run)
        elif one.kind == "values":
            for found, words in _values(one, two, original.ranks[0], run.ranks[0]):
                yield found, f"{name} {words}."


def _kind(file: WrittenFile) -> str:
    return {"text": "a text", "values": "a checkpoint", "unreadable": "cut off", "other": "of another kind"}[file.kind]


def _lines(name: str, right: WrittenFile, other: WrittenFile, original: Trace, run: Trace) -> Iterator[Finding]:
    once, often = _expected(right.lines, original, run, 1), _expected(right.lines, original, run, run.processes)
    if other.lines in (right.lines, *once):
        return
    counts = f"{name} has {plural(other.lines, 'line')}, the original's {right.lines}."
    if other.lines in often:
        sites = list(dict.fromkeys(one.site for rank in run.ranks[1:] for one in rank.opened if one.name == other.name))
        also = f" Other ranks write it, too, at {together_in_words(sites)}." if any(sites) else ""
        yield "disproved", f"{counts}{also} Let rank 0 alone write it."
        return
    if other.lines > right.lines:
        yield "unproved", f"{counts} Let rank 0 alone write it."
        return
    # A line for each step, or for each so many, beside those of a head.
    shares = [len(rank.backwards) for rank in (original.ranks[0], run.ranks[0])]
    allowed = right.lines * shares[1] / shares[0] if shares[0] else 0.0
    if abs(other.lines - allowed) > 2 + 0.05 * allowed:
        yield "unproved", counts


def _expected(lines: int, original: Trace, run: Trace, writers: int) -> set[int]:
    """How many lines there are where so many processes write those of each pass, and one or all of them the head.

    A number that is measured may end the training after more passes, or fewer.
    """
    if original.status != "ended" or run.status != "ended":
        return {writers * lines}
    passes = [_training_passes(trace.ranks[0]) for trace in (original, run)]
    of_pass, head = divmod(lines, passes[0]) if passes[0] else (0, lines)
    if not of_pass:
        return {writers * lines}
    return {writers * of_pass * passes[1] + head * count for count in (1, writers)}


def _training_passes(rank: RankTrace) -> int:
    """How often it read what it trains on."""
    passes = passes_by_loader(rank)
    return max((passes.get(loader, 0) for loader in training_loaders(rank)), default=0)


def _values(right: WrittenFile, other: WrittenFile, original: RankTrace, rank: RankTrace) -> Iterator[Finding]:
    one, two = (
        _by_key([entry for entry in entries if "_hooks" not in entry.key]) for entries in compared_entries(right, other)
    )
    missing, added = sorted(one.keys() - two.keys()), sorted(two.keys() - one.keys())
    if missing or added:
        yield "disproved", other_keys(missing, added)
        return
    strange = strange_classes(right, other)
    if strange:
        yield "disproved", f"holds an object of {strange[0]}, which the original's does not"
    for key in one:
        kinds = one[key].kind, two[key].kind
        if kinds[0] == kinds[1] or not (is_array(kinds[0]) or is_array(kinds[1])):
            continue
        words = f"has {kinds[1]} for {two[key].key}, the original's {kinds[0]}"
        lengths = _lengths(*kinds)
        if lengths is None:
            yield "disproved", words
        elif is_of_samples(original, lengths[0], None) and lengths[1] * 2 <= lengths[0]:
            yield "disproved", f"{words}: it holds one rank's share of the samples"
        elif not (is_of_steps(original, lengths[0], None) and is_of_steps(rank, lengths[1], None)):
            yield "unproved", words


def _by_key(entries: Sequence[Entry]) -> dict[str, Entry]:
    return {re.sub(r"\d+", "#", entry.key): entry for entry in entries}


def _lengths(right: str, other: str) -> tuple[int, int] | None:
    """The lengths of two arrays that differ in nothing else; None where they do."""
    (kind, shape), (other_kind, other_shape) = (
        (text.partition(" ")[0], [int(number) for number in re.findall(r"\d+", text.partition(" ")[2])])
        for text in (right, other)
    )
    if kind != other_kind or len(shape) != len(other_shape) or not shape or shape[1:] != other_shape[1:]:
        return None
    return shape[0], other_shape[0]
