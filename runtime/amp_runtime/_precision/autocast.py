"""The region whose operations run in mixed precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from amp_runtime._core.context import context

F = TypeVar("F", bound=Callable[..., Any])


class autocast:
    """``torch.autocast`` with the device and half type of ``amp.init``; a context manager and a decorator.

    At O0 and before ``amp.init`` it does nothing. At O2 and O3 it is on as at O1: the weights are half
    already, so its casts cost nothing, and its float32 list (softmax, norms, losses) keeps the loss code of
    the script safe.

    Args:
        enabled: ``False`` runs the block with autocast off, also inside another region.
        dtype: the half type, ``torch.float16`` or ``torch.bfloat16``; by default the one of ``amp.init``.

    Raises:
        TypeError: ``enabled`` is not a bool, as in ``autocast("cuda")``: the device is found, not given.
        ValueError: ``dtype`` is no half type.
    """

    def __init__(self, enabled: bool = True, dtype: torch.dtype | None = None) -> None:
        if not isinstance(enabled, bool):
            raise TypeError(
                f"autocast got enabled={enabled!r}; it takes True or False, and finds the device itself: "
                "amp.autocast(enabled=True, dtype=None)"
            )
        if dtype not in (None, torch.float16, torch.bfloat16):
            raise ValueError(f"autocast got dtype={dtype!r}; allowed: None, torch.float16, torch.bfloat16")
        self._enabled = enabled
        self._dtype = dtype
        self._entered: list[torch.autocast | None] = []

    def __enter__(self) -> None:
        if not context.mixed:
            self._entered.append(None)
            return
        kind = context.device_type()
        # Decided on entry, so that a decorator read before amp.init follows it.
        region = torch.autocast(kind, self._dtype or context.half_dtype(kind), self._enabled)
        region.__enter__()  # type: ignore[no-untyped-call]
        self._entered.append(region)

    def __exit__(self, *error: Any) -> None:
        region = self._entered.pop()
        if region is not None:
            region.__exit__(*error)

    def __call__(self, function: F) -> F:
        """Runs every call of ``function`` in such a region."""

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with autocast(self._enabled, self._dtype):
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]
