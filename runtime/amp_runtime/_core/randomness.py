"""The states of the random generators that every script shares: torch's on the CPU, Python's, and NumPy's."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


def random_state() -> dict[str, Any]:
    """The states; NumPy's is ``None`` where it is not imported."""
    numpy: Any = sys.modules.get("numpy")
    return {
        "torch": torch.get_rng_state(),
        "random": random.getstate(),
        "numpy": None if numpy is None else numpy.random.get_state(legacy=False),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restores what :func:`random_state` returned, also where it was saved and tuples have become lists."""
    torch.set_rng_state(state["torch"])
    version, keys, gauss = state["random"]
    random.setstate((version, tuple(keys), gauss))
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and state["numpy"] is not None:
        numpy.random.set_state(state["numpy"])
