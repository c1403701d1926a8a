"""The states of the random generators that every script shares: torch's, Python's, and NumPy's."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


def random_state() -> dict[str, Any]:
    """The states, torch's of the CPU; NumPy's is ``None`` where it is not imported."""
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


def random_state_with_gpu() -> dict[str, Any]:
    """The states, with that of the current GPU where CUDA is in use."""
    state = random_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["gpu"] = torch.cuda.get_rng_state()
    return state


def set_random_state_with_gpu(state: Mapping[str, Any]) -> None:
    """Restores what :func:`random_state_with_gpu` returned."""
    set_random_state(state)
    if "gpu" in state:
        torch.cuda.set_rng_state(state["gpu"])
