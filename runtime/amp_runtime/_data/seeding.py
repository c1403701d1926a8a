"""Seeds, and streams of random numbers beside the script's own."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from amp_runtime._core.randomness import random_state, set_random_state

_MASK = 2**63 - 1
_STRIDE = 0x9E3779B97F4A7C15  # the golden ratio of 2**64: seeds of neighbouring ranks are far apart


def mix(*parts: int) -> int:
    """One 63-bit seed made of several numbers; the same parts give the same seed on every machine."""
    seed = 0
    for part in parts:
        seed = (seed ^ (part & (2**64 - 1))) * 0xBF58476D1CE4E5B9 % 2**64
        seed ^= seed >> 29
        seed = (seed + _STRIDE) % 2**64
    return seed & _MASK


def seed_everything(seed: int) -> None:
    """Seeds torch, ``random``, and NumPy where it is imported."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


class SharedRandomness:
    """A stream of random numbers beside the script's own, the same on every rank.

    ``with`` switches torch's CPU generator, ``random`` and NumPy to the stream; on leaving, the stream is
    remembered and the script's state restored. So a sampler that draws from the global generators gives the
    same indices on all ranks, however much the ranks have drawn in between.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inside: dict[str, Any] | None = None
        self._outside: dict[str, Any] = {}

    def __enter__(self) -> None:
        self._outside = random_state()
        if self._inside is None:
            torch.default_generator.manual_seed(self._seed)
            random.seed(self._seed)
            numpy: Any = sys.modules.get("numpy")
            if numpy is not None:
                numpy.random.seed(self._seed % 2**32)
        else:
            set_random_state(self._inside)

    def __exit__(self, *_: object) -> None:
        self._inside = random_state()
        set_random_state(self._outside)
