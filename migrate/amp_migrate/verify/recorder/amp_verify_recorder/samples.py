"""Names of samples that are the same in every process and every run."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

_DEEPEST = 10


class Datasets:
    """Names the data that loaders read from, in the order in which loaders over it are made.

    Subsets and joined data sets are looked through, so that a sample has one name in a training and in a validation
    set, and one that does not depend on how a split was drawn.
    """

    def __init__(self) -> None:
        self._names: dict[int, tuple[Any, str]] = {}
        self._counts: Counter[str] = Counter()

    def note(self, dataset: Any) -> None:
        """Name all data that a loader will read from."""
        for base in _bases(dataset, _DEEPEST):
            self._name(base)

    def samples(self, dataset: Any, indices: Sequence[int]) -> tuple[str, list[int]]:
        """The name of the data, and the place of each sample in it; joined data sets have one name and one count."""
        found = [_leaf(dataset, index) for index in indices]
        bases = {id(base) for base, _ in found}
        if len(bases) == 1:
            return self._name(found[0][0]), [index for _, index in found]
        # Of several: each has a range of its own.
        return "+", [_far(self._name(base)) + index for base, index in found]

    def _name(self, base: Any) -> str:
        known = self._names.get(id(base))
        if known is not None:
            return known[1]
        try:
            kind = f"{type(base).__name__}/{len(base)}"
        except TypeError:
            kind = type(base).__name__
        name = f"{kind}#{self._counts[kind]}"
        self._counts[kind] += 1
        # Kept, so that no other object gets its number.
        self._names[id(base)] = (base, name)
        return name


def _far(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest()[:7], 16) << 24


def _bases(dataset: Any, deepest: int) -> Iterator[Any]:
    if deepest and isinstance(getattr(dataset, "datasets", None), (list, tuple)):
        for part in dataset.datasets:
            yield from _bases(part, deepest - 1)
    elif deepest and (inner := _inside(dataset)) is not None:
        yield from _bases(inner, deepest - 1)
    else:
        yield dataset


def _leaf(dataset: Any, index: int) -> tuple[Any, int]:
    """The data in which a sample lies, and where."""
    for _ in range(_DEEPEST):
        if index < 0 and hasattr(dataset, "__len__"):
            index += len(dataset)
        ends = getattr(dataset, "cumulative_sizes", None)
        if isinstance(ends, list) and isinstance(getattr(dataset, "datasets", None), (list, tuple)):
            part = next((number for number, end in enumerate(ends) if index < end), len(ends) - 1)
            index -= ends[part - 1] if part else 0
            dataset = dataset.datasets[part]
            continue
        inner = _inside(dataset)
        if inner is None:
            break
        if hasattr(dataset, "indices"):
            index = int(dataset.indices[index])
        dataset = inner
    return dataset, index


def _inside(dataset: Any) -> Any:
    """What a data set is a part of: of a subset, or of one that gives another form to each sample of a subset."""
    inner = getattr(dataset, "dataset", None)
    if inner is not None and hasattr(dataset, "indices"):
        return inner
    for name in ("dataset", "subset"):
        part: Any = getattr(dataset, name, None)
        if hasattr(part, "indices") and hasattr(part, "dataset") and len(part) == len(dataset):
            return part
    return None
