"""Functions of torch that get other arguments where anything is cast: mixed types made one, masks kept finite."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from amp_runtime._precision import attention_masks, mixed_writes
from amp_runtime._precision.policy import casting

Change = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]

_replaced: list[tuple[Any, str, Any]] = []


def follow(wanted: bool) -> None:
    """Has these functions get other arguments, or gives torch's own back."""
    if wanted and not _replaced:
        for space, name, change in (*mixed_writes.CHANGES, *attention_masks.CHANGES):
            _replace(space, name, change)
    elif _replaced and not wanted:
        while _replaced:
            space, name, own = _replaced.pop()
            if own is None:
                delattr(space, name)
            else:
                setattr(space, name, own)


def _replace(space: Any, name: str, change: Change) -> None:
    original = getattr(space, name)
    if "amp_original" in getattr(original, "__dict__", ()):
        return  # registered by the script, which chose a precision

    @functools.wraps(original)
    def changing(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not casting():
            return original(*args, **kwargs)
        args, kwargs = change(args, kwargs)
        return original(*args, **kwargs)

    changing.amp_original = original  # type: ignore[attr-defined]
    _replaced.append((space, name, vars(space).get(name)))
    setattr(space, name, changing)
    if space is not torch.Tensor:
        # TorchScript knows torch's functions by identity, and would try to compile this one.
        torch.jit._builtins._register_builtin(changing, f"aten::{name}")
