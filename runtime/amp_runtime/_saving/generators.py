"""The states of the global random generators, as values that ``torch.load`` reads with ``weights_only=True``."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from amp_runtime._core.context import context
from amp_runtime._data.seeding import mix, seed_everything
from amp_runtime._data.streams import common_numbers, own_numbers_in_force, resume_own

State = dict[str, Any]


def generator_states() -> State:
    """The states of torch, ``random``, CUDA where it is in use, and NumPy where it is imported.

    While this rank draws numbers of its own, those of the stream that all ranks share too, as ``common``.
    """
    state = _states_in_force()
    if own_numbers_in_force():
        with common_numbers():
            state["common"] = _states_in_force()
    return state


def _states_in_force() -> State:
    numpy: Any = sys.modules.get("numpy")
    state: State = {"torch": torch.get_rng_state(), "random": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    if numpy is not None:
        name, keys, position, has_gauss, gauss = numpy.random.get_state()
        state["numpy"] = (name, keys.tolist(), int(position), int(has_gauss), float(gauss))
    return state


def restore_generators(state: State) -> None:
    """Restores what :func:`generator_states` returned; the rank's own stream for when it is in force again."""
    if "common" not in state:
        _restore(state)
        return
    with common_numbers():
        _restore(state["common"])
    resume_own(partial(_restore, state))


def _restore(state: State) -> None:
    torch.set_rng_state(state["torch"].cpu())
    version, numbers, gauss = state["random"]
    random.setstate((version, tuple(numbers), gauss))
    if "cuda" in state and torch.cuda.is_available():
        for index, of_device in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(of_device.cpu(), index)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        name, keys, position, has_gauss, gauss = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, gauss))


def restore_generators_of_rank(states: Sequence[State]) -> None:
    """Restores this rank's state of those saved by all ranks.

    A rank that did not exist then goes on with rank 0's state of the stream that all ranks share. Its own numbers are
    seeded by what it draws from that one, and by its rank. So are those of a script that shares no stream.
    """
    if context.rank < len(states):
        restore_generators(states[context.rank])
        return
    with common_numbers():
        _restore(states[0].get("common", states[0]))
    alike = all(torch.equal(state["torch"].cpu(), states[0]["torch"].cpu()) for state in states)
    if own_numbers_in_force() or not ("common" in states[0] or alike):
        drawn = int(torch.randint(2**62, ()).item())  # differs from one saved moment to the next
        seed_everything(mix(drawn, context.rank))
