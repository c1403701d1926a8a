"""A clock that goes at another speed, in the run that is to show what the original does not repeat.

A duration that is rounded to whole seconds is often the same in two runs and another one in the third. Under a clock
that goes three times as fast it differs, whatever it is called. What other modules took from ``time`` before stays.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

_CLOCKS = ("time", "perf_counter", "monotonic", "process_time")


def watch(*_: Any) -> None:
    """Let ``time`` go as fast as ``AMP_VERIFY_CLOCK`` says, from its present value on."""
    factor = int(os.environ.get("AMP_VERIFY_CLOCK") or 1)
    if factor == 1:
        return
    for name in _CLOCKS:
        for clock in (name, f"{name}_ns"):
            setattr(time, clock, _faster(getattr(time, clock), factor))


def _faster(clock: Callable[[], Any], factor: int) -> Callable[[], Any]:
    began = clock()

    @functools.wraps(clock)
    def faster() -> Any:
        return began + factor * (clock() - began)

    return faster
