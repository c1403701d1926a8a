"""The same random numbers in every run, and whether any were drawn."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

from .record import Record


def seed_python(record: Record) -> None:
    """Seed Python's own generator."""
    if record.seed is not None:
        random.seed(record.seed)


def seed_numpy(record: Record, module: Any) -> None:
    """Seed numpy's global generator, which it does not do itself."""
    if record.seed is not None:
        module.seed(record.seed % 2**32)


def seed_torch(record: Record, torch: Any) -> None:
    """Seed torch's generators on all devices."""
    if record.seed is not None:
        torch.manual_seed(record.seed)


class Draws:
    """Tells whether a global generator has been used since :meth:`mark`."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._before = self._states()

    def mark(self) -> None:
        """Begin to look from here on."""
        self._before = self._states()

    def any(self) -> bool:
        """Whether any number was drawn."""
        before, now = self._before, self._states()
        return len(before) != len(now) or not all(map(self._equal, before, now))

    def digest(self) -> str:
        """The states of all generators in one word."""
        parts = [
            bytes(state.tolist()) if hasattr(state, "tolist") else repr(state).encode() for state in self._states()
        ]
        return hashlib.sha256(b"".join(parts)).hexdigest()

    def _equal(self, one: Any, other: Any) -> bool:
        if isinstance(one, self._torch.Tensor):
            return bool(self._torch.equal(one, other))
        return bool(one == other)

    def _states(self) -> list[Any]:
        torch = self._torch
        states: list[Any] = [random.getstate(), torch.default_generator.get_state()]
        if torch.cuda.is_available() and torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            # Seed and offset, kept on the host: no GPU is waited for.
            states += [generator.get_state() for generator in torch.cuda.default_generators]
        numpy = sys.modules.get("numpy.random")
        if numpy is not None and hasattr(numpy, "get_state"):
            _, keys, position, *_ = numpy.get_state()
            states.append((keys.tobytes(), position))
        return states
