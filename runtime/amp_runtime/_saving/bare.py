"""The script's own module, and the names its weights have there."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from amp_runtime._prepare import unwrap

_PREFIXES = ("module.", "_orig_mod.")


def bare(model: Any) -> Any:
    """The module inside what ``amp.prepare_model``, torch's parallel wrappers and ``torch.compile`` put around it."""
    while True:
        inner = unwrap(model)
        inner = getattr(inner, "_orig_mod", inner)
        if inner is model:
            return model
        model = inner


def without_prefixes(state: Mapping[str, Any], own: Container[str]) -> Mapping[str, Any]:
    """A state dict without the ``module.`` and ``_orig_mod.`` that wrappers put before every key.

    Args:
        state: a state dict. It is not changed.
        own: the names of the model; what they begin with stays.
    """
    for prefix in _PREFIXES * 2:
        if state and all(key.startswith(prefix) for key in state) and not any(key in own for key in state):
            state = {key[len(prefix) :]: value for key, value in state.items()}
    return state


def some(names: Any, most: int = 5) -> str:
    """The first few names for a message, and how many more there are."""
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + rest
