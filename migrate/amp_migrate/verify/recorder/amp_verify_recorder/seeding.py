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
        return len(before) != len(now) or not all(map(self._equal, before.values(), now.values()))

    def moved(self) -> list[str]:
        """The generators that were used since, and a digest of the state that each is in now."""
        before, now = self._before, self._states()
        # Generators are only added: numpy may be imported, a GPU begun.
        return [
            f"{name}:{_digest(state)}"
            for name, state in now.items()
            if name not in before or not self._equal(before[name], state)
        ]

    def marked(self) -> dict[str, str]:
        """A digest of the state that each generator was in at the mark."""
        return {name: _digest(state) for name, state in self._before.items()}

    def digest(self) -> str:
        """The states of all generators in one word."""
        return hashlib.sha256(b"".join(map(_bytes, self._states().values()))).hexdigest()

    def _equal(self, one: Any, other: Any) -> bool:
        if isinstance(one, self._torch.Tensor):
            return bool(self._torch.equal(one, other))
        return bool(one == other)

    def _states(self) -> dict[str, Any]:
        torch = self._torch
        states: dict[str, Any] = {"random": random.getstate(), "torch": torch.default_generator.get_state()}
        if torch.cuda.is_available() and torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            # Seed and offset, kept on the host: no GPU is waited for.
            for number, generator in enumerate(torch.cuda.default_generators):
                states[f"cuda{number}"] = generator.get_state()
        numpy = sys.modules.get("numpy.random")
        if numpy is not None and hasattr(numpy, "get_state"):
            _, keys, position, *_ = numpy.get_state()
            states["numpy"] = (keys.tobytes(), position)
        return states


def _bytes(state: Any) -> bytes:
    return bytes(state.tolist()) if hasattr(state, "tolist") else repr(state).encode()


def _digest(state: Any) -> str:
    return hashlib.sha256(_bytes(state)).hexdigest()[:16]
