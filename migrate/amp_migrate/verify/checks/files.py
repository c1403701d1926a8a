"""The migrated script writes the files that the original writes, and the original can read them.

Compared are the files below the project that a run made or changed. At O0 they have the same names, texts have the
same lines, and checkpoints (of torch, numpy, safetensors and pickle) the same keys, types, shapes and bytes. At O1 and
O2 checkpoints have the same keys, types and shapes: weights that are saved in half, or under other names, are not what
the original's loader expects. So are objects of classes that the original's did not hold.

What differs between two runs of the original is no evidence, nor is what its second run did not come to. Times and
the like are left out of texts and names as of standard output. Of runs that were stopped only files are compared that
both have, and their texts as far as both go, since a text may not be written to its end then.

Files that are not read, such as images and logs of TensorBoard, only have to be there. What is written outside of the
project is not seen.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.torch.checkpoints import SCALER_KEYS

from amp_migrate.out.terminal import plural
from amp_migrate.verify import left_out, printed
from amp_migrate.verify.checks.another_training import another_training
from amp_migrate.verify.checks.common import Traces, lossy_runs
from amp_migrate.verify.checks.outputs import quoted, repeats, same_reach
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O0, ORIGINAL, ORIGINAL_AGAIN, Asked
from amp_migrate.verify.traces import Entry, Trace, WrittenFile

ID = "o0-files"
TITLE = "O0 writes the files that the original writes"


_EVERYWHERE = sys.stdlib_module_names | {"__builtin__"}
# As apex.amp.state_dict() has it, with what it is saved under before.
_SCALER = re.compile(rf"((?:.+/)?(?:{'|'.join(SCALER_KEYS)}))/_growth_tracker$")
_APEX_SCALER = re.compile(r"(.+)/loss_scaler\d+/\w+$")


@dataclass(frozen=True)
class Difference:
    """What differs first.

    Attributes:
        name: of the file.
        words: how, as a sentence without its full stop.
        key: what else a second run of the original has to repeat: a key of a checkpoint, a line of a text.
    """

    name: str
    words: str
    key: str = ""


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the files at O0, and their keys, types and shapes at the levels that compute in half."""
    original = traces.get(ORIGINAL)
    if original is None:
        return
    if repeats(traces, O0) and (original.files or traces[O0].files):
        yield _judged(traces, O0, ID, TITLE, exact=True)
    for level, trace in lossy_runs(traces):
        if original.usable and original.files and trace.files:
            title = f"{level} writes checkpoints that the original can read"
            yield _judged(traces, level, f"{level.lower().replace(', ', '-')}-files", title, exact=False)


def differs(traces: Traces) -> bool:
    """Whether a file differs at O0, so that the original has to show that it repeats itself."""
    return repeats(traces, O0) and next(_differences(traces, O0, exact=True), None) is not None


def by_name(trace: Trace) -> dict[str, WrittenFile]:
    """The files of a run by their names, without what no two runs have in common."""
    return {left_out.steady(file.name): file for file in trace.files}


def where_written(trace: Trace, name: str) -> str:
    """Where a run writes a file, in parentheses and with a space before; empty where that is not known."""
    sites = [opened.site for rank in trace.ranks for opened in rank.opened if opened.name == name and opened.site]
    return f" (written at {sites[0]})" if sites else ""


def _sentence(words: str) -> str:
    # A name of a file stays as it is written.
    return f"It{words[2:]}." if words.startswith("it ") else f"{words}."


def _judged(traces: Traces, name: str, id_: str, title: str, *, exact: bool) -> Check:
    open_: Difference | None = None
    for difference in _differences(traces, name, exact=exact):
        steady = _is_steady(traces, difference, exact=exact)
        message = _sentence(difference.words)
        if steady and (reason := another_training(traces)):
            return Check(id_, title, "unproved", f"{message} {reason}")
        if steady:
            return Check(id_, title, "disproved", message)
        if steady is None:
            open_ = open_ or difference
    if open_ is not None:
        message = f"{_sentence(open_.words)} It is not known whether the original is reproducible there."
        return Check(id_, title, "unproved", message)
    original, other = by_name(traces[ORIGINAL]), by_name(traces[name])
    values = sum(len(original[key].entries) for key in original.keys() & other.keys())
    message = f"{plural(len(original.keys() & other.keys()), 'file').capitalize()} with {plural(values, 'saved value')}"
    same = "hold the same" if exact else "have the same keys, types and shapes"
    return Check(id_, title, "proved", f"{message} {same}.")


def _is_steady(traces: Traces, difference: Difference, *, exact: bool) -> bool | None:
    """Whether two runs of the original agree there; None where the second did not come so far."""
    if not exact:
        return True
    original, again = traces[ORIGINAL], traces.get(ORIGINAL_AGAIN)
    if again is None or not again.usable:
        return None
    same = same_reach(traces, ORIGINAL_AGAIN)
    one, two = by_name(original), by_name(again)
    if difference.name not in one:
        # A name that is new: the original has to have the same names in each run.
        return one.keys() == two.keys() if same else None
    if difference.name not in two:
        return False if same else None
    found = list(_of_file(difference.name, one[difference.name], two[difference.name], whole=same, exact=same))
    if any(item.key == difference.key for item in found):
        return False
    return True if same or not difference.key else None


def _differences(traces: Traces, name: str, *, exact: bool) -> Iterator[Difference]:
    original, other = traces[ORIGINAL], traces[name]
    right, mine = by_name(original), by_name(other)
    whole = same_reach(traces, name)
    if whole and exact:
        for key in sorted(right.keys() - mine.keys()):
            yield Difference(key, f"it does not write {right[key].name}{where_written(original, right[key].name)}")
        for key in sorted(mine.keys() - right.keys()):
            words = f"it writes {mine[key].name}{where_written(other, mine[key].name)}, which the original does not"
            yield Difference(key, words)
    for key in sorted(right.keys() & mine.keys()):
        place = where_written(original, right[key].name)
        there = where_written(other, mine[key].name).replace(" (written at", "")
        place = f"{place[:-1]}, in the migrated version{there}" if place and there else place
        for found in _of_file(
            key, right[key], mine[key], whole=whole and other.status == "ended", exact=exact and whole
        ):
            yield Difference(found.name, f"{mine[key].name}{place} {found.words}", found.key)


def _of_file(name: str, right: WrittenFile, other: WrittenFile, *, whole: bool, exact: bool) -> Iterator[Difference]:
    """What differs between two versions of a file, in words that follow its name."""
    if right.kind != other.kind:
        kinds = {"text": "a text", "values": "a checkpoint", "unreadable": "cut off", "other": "of another kind"}
        yield Difference(name, f"is {kinds[other.kind]}, the original's {kinds[right.kind]}")
    elif right.kind == "values":
        yield from _of_values(name, right, other, exact=exact)
    elif right.kind == "text":
        yield from _of_texts(name, right, other, whole=whole, exact=exact)


def _of_texts(name: str, right: WrittenFile, other: WrittenFile, *, whole: bool, exact: bool) -> Iterator[Difference]:
    if not (whole or exact):
        return
    one, two = printed.lines(right.text), printed.lines(other.text)
    if not whole:
        # What was not flushed yet is missing.
        end = max(0, min(len(one), len(two)) - 1)
        one, two = one[:end], two[:end]
    known: set[tuple[str, int]] = set()
    while exact:
        found = printed.first_difference(one, two, frozenset(known))
        if found is None:
            return
        words = f"has {quoted(found.other)} in place of {quoted(found.right)}"
        place = (found.right.sentence, found.place) if found.right is not None and found.place is not None else None
        yield Difference(name, words, f"{place}" if place is not None else "lines")
        if place is None:
            return
        known.add(place)


def _of_values(name: str, right: WrittenFile, other: WrittenFile, *, exact: bool) -> Iterator[Difference]:
    # What hooks a module that is saved whole carries does not matter to who loads it.
    one, two = (
        {entry.key: entry for entry in entries if exact or "_hooks" not in entry.key}
        for entries in compared_entries(right, other)
    )
    missing, added = sorted(one.keys() - two.keys()), sorted(two.keys() - one.keys())
    if missing or added:
        yield Difference(name, other_keys(missing, added), "keys")
        return
    strange = strange_classes(right, other)
    if strange:
        yield Difference(name, f"holds an object of {strange[0]}, which the original's does not", "classes")
    for key, entry in one.items():
        if entry.kind != two[key].kind and (exact or is_array(entry.kind) or is_array(two[key].kind)):
            yield Difference(name, f"has {two[key].kind} for {key}, the original's {entry.kind}", f"kind of {key}")
        elif exact and entry.value != two[key].value and entry.value and two[key].value:
            words = "other numbers" if is_array(entry.kind) else f"{two[key].value} in place of {entry.value}"
            yield Difference(name, f"has {words} for {key}", f"value of {key}")


def compared_entries(right: WrittenFile, other: WrittenFile) -> tuple[list[Entry], list[Entry]]:
    """The values of two checkpoints, but for the states of loss scalers.

    What Apex keeps of them is another thing than what is there in its place; the runtime loads both. Checkpoints that
    had none have one more entry for it (AMP118), which is empty where nothing is scaled.
    """
    places = {place for entry in other.entries if (place := _scaler_of(entry)) and not _has(right, place)}
    places |= {found[1] for entry in right.entries if (found := _APEX_SCALER.match(entry.key))}
    one, two = (
        [entry for entry in file.entries if not any(f"{entry.key}/".startswith(f"{place}/") for place in places)]
        for file in (right, other)
    )
    return one, two


def _scaler_of(entry: Entry) -> str | None:
    """The key under which an entry is the state of a scaler, or a part of it."""
    if entry.kind == "empty dict":
        return entry.key if entry.key.rpartition("/")[2] in SCALER_KEYS else None
    found = _SCALER.match(entry.key)
    return found[1] if found is not None else None


def _has(file: WrittenFile, place: str) -> bool:
    return any(f"{entry.key}/".startswith(f"{place}/") for entry in file.entries)


def other_keys(missing: list[str], added: list[str]) -> str:
    """That keys of a checkpoint are other ones, in words that follow the name of the file."""
    if missing and added:
        count = f"{plural(len(missing), 'key')} of the original's " if len(missing) > 1 else ""
        return f"lacks {count}{'such as ' if count else 'the key '}{missing[0]} and has {added[0]} in its place"
    if missing:
        return f"lacks the key {missing[0]}, which the original's has"
    return f"has the key {added[0]}, which the original's has not"


def strange_classes(right: WrittenFile, other: WrittenFile) -> list[str]:
    """Classes that a loader has to find for one file and not for the other, and may not have."""
    return [
        name
        for name in sorted(set(other.classes) - set(right.classes))
        if name.partition(".")[0] not in _EVERYWHERE and not name.startswith("torch.nn.modules.")
    ]


def is_array(kind: str) -> bool:
    """Whether an entry is a tensor or an array."""
    return kind.endswith(")") and " (" in kind
