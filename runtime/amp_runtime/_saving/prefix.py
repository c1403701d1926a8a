"""State dicts that torch's parallel wrappers have saved."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

S = TypeVar("S", bound=Mapping[str, Any])

_PREFIX = "module."


def without_module_prefix(state_dict: S) -> S:
    """The state dict of the model inside ``nn.DataParallel`` or torch's DDP, whose keys all begin with ``module.``.

    For a checkpoint of the unmigrated script, or a model that was not prepared; a prepared one loads both forms.

    Args:
        state_dict: what ``state_dict()`` of the wrapper returned. It is not changed.

    Returns:
        A dictionary of the same class with the same tensors, and with the versions of the modules that torch
        keeps in ``_metadata``; the very same object if there is a key without the prefix, or none at all.

    Raises:
        TypeError: ``state_dict`` is not a mapping.
    """
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"amp.without_module_prefix got {type(state_dict).__name__}; allowed: a state dict, as in "
            "amp.without_module_prefix(torch.load(path))"
        )
    if not state_dict or not all(isinstance(key, str) and key.startswith(_PREFIX) for key in state_dict):
        return state_dict
    result: Any = copy.copy(state_dict)
    result.clear()
    result.update((key[len(_PREFIX) :], value) for key, value in state_dict.items())
    metadata = getattr(state_dict, "_metadata", None)
    if isinstance(metadata, Mapping):
        own = _PREFIX[:-1]  # the model itself; the wrapper is ""
        kept = type(metadata)()
        for key, value in metadata.items():
            if key == own or key.startswith(_PREFIX):
                kept[key[len(_PREFIX) :]] = value  # type: ignore[index]
        result._metadata = kept
    without: S = result
    return without
