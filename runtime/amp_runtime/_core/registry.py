"""Dictionaries keyed by a tensor's identity, which do not keep the tensor alive."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

import torch

V = TypeVar("V")


class TensorMap(Generic[V]):
    """A weak dictionary keyed by identity.

    A tensor's ``==`` compares elements, so ordinary ones cannot be used.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[torch.Tensor], V]] = {}

    def __setitem__(self, tensor: torch.Tensor, value: V) -> None:
        key = id(tensor)
        entries = self._entries

        def forget(gone: weakref.ref[torch.Tensor]) -> None:
            if key in entries and entries[key][0] is gone:
                del entries[key]

        entries[key] = (weakref.ref(tensor, forget), value)

    def get(self, tensor: torch.Tensor) -> V | None:
        """The value of this very tensor, or ``None``."""
        entry = self._entries.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def pop(self, tensor: torch.Tensor) -> V | None:
        """Removes this very tensor; returns its value, or ``None``."""
        value = self.get(tensor)
        if value is not None:
            del self._entries[id(tensor)]
        return value

    def items(self) -> list[tuple[torch.Tensor, V]]:
        """The tensors that are alive, with their values, in the order in which they were added."""
        found = [(reference(), value) for reference, value in list(self._entries.values())]
        return [(tensor, value) for tensor, value in found if tensor is not None]

    def clear(self) -> None:
        """Removes everything."""
        self._entries.clear()

    def __contains__(self, tensor: torch.Tensor) -> bool:
        entry = self._entries.get(id(tensor))
        return entry is not None and entry[0]() is tensor

    def __bool__(self) -> bool:
        return bool(self._entries)
