"""Dictionaries keyed by an object's identity, which do not keep the object alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

import torch

K = TypeVar("K")
V = TypeVar("V")


class IdentityMap(Generic[K, V]):
    """A weak dictionary keyed by identity.

    A tensor's ``==`` compares elements, so ordinary ones cannot be used; and they are slow to walk through.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[K], V]] = {}

    def __setitem__(self, item: K, value: V) -> None:
        key = id(item)
        entries = self._entries

        def forget(gone: weakref.ref[K]) -> None:
            if key in entries and entries[key][0] is gone:
                del entries[key]

        entries[key] = (weakref.ref(item, forget), value)

    def get(self, item: K) -> V | None:
        """The value of this very object, or ``None``."""
        entry = self._entries.get(id(item))
        return entry[1] if entry is not None and entry[0]() is item else None

    def pop(self, item: K) -> V | None:
        """Removes this very object; returns its value, or ``None``."""
        value = self.get(item)
        if value is not None:
            del self._entries[id(item)]
        return value

    def items(self) -> list[tuple[K, V]]:
        """The objects that are alive, with their values, in the order in which they were added."""
        found = [(reference(), value) for reference, value in list(self._entries.values())]
        return [(item, value) for item, value in found if item is not None]

    def __iter__(self) -> Iterator[K]:
        return iter([item for item, _ in self.items()])

    def clear(self) -> None:
        """Removes everything."""
        self._entries.clear()

    def __contains__(self, item: K) -> bool:
        entry = self._entries.get(id(item))
        return entry is not None and entry[0]() is item

    def __bool__(self) -> bool:
        return bool(self._entries)


class TensorMap(IdentityMap[torch.Tensor, V]):
    """One whose keys are tensors."""
